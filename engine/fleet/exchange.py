"""Maps the memory through which engines of this machine send blocks, and pins it on a GPU machine."""

import os
from threading import Event, Thread

import numpy as np
import torch

from engine.api.errors import BadInput
from engine.api.events import log
from engine.api.places import ExchangePlace
from engine.distributed.memory import mapped
from engine.kv.store import KVStore
from engine.kv.tiers.exchange import ExchangeTier

_PORTABLE = 1  # a flag: pinned for all of the process's contexts


def exchange_tier(option: str, store: KVStore, device: torch.device) -> ExchangeTier:
    place = ExchangePlace.parse(option)
    try:
        file = os.open(place.path, os.O_RDWR)
        try:
            size = os.fstat(file).st_size
            memory = np.frombuffer(mapped(file, size), np.uint8)
        finally:
            os.close(file)
    except (OSError, ValueError) as error:
        raise BadInput(f"exchange: {place.path} cannot be mapped: {error}") from error
    ready = Event()
    tier = ExchangeTier(memory, place.segments, place.own, store, ready.is_set)
    if device.type == "cuda":
        Thread(target=_pin, args=(memory, device, tier, ready), name="exchange-memory", daemon=True).start()
    else:
        ready.set()
    return tier


def _pin(memory: np.ndarray, device: torch.device, tier: ExchangeTier, ready: Event) -> None:
    """Pin the memory for this process's GPU. It takes a while: until then, nothing is sent."""
    with torch.cuda.device(device):
        error = int(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, _PORTABLE))
    if error:
        tier.problem = f"{memory.nbytes} bytes of host memory cannot be pinned: CUDA error {error}"
        log.warning("no blocks are sent: %s", tier.problem)
    else:
        ready.set()
