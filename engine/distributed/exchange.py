"""Maps the memory through which engines of this machine send blocks, and pins it on a GPU machine."""

import os
from threading import Event, Thread

import numpy as np
import torch

from engine.api.config import ExchangePlace
from engine.api.errors import BadInput
from engine.api.events import log
from engine.distributed.memory import mapped
from engine.kv.store import KVStore
from engine.kv.tiers.exchange import ExchangeTier


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
    if device.type == "cuda":
        Thread(target=_pin, args=(memory, device, ready), name="exchange-memory", daemon=True).start()
    else:
        ready.set()
    return ExchangeTier(memory, place.segments, place.own, store, ready.is_set)


def _pin(memory: np.ndarray, device: torch.device, ready: Event) -> None:
    """Pin the memory for this process's GPU. It takes a while: until then, prompts are computed."""
    with torch.cuda.device(device):
        error = int(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 1))
    if error:
        log.warning("no blocks are exchanged: %d bytes cannot be pinned, CUDA error %d", memory.nbytes, error)
    else:
        ready.set()
