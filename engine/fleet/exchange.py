"""Maps the memory through which engines of this machine send blocks, and opens that of their GPUs.

Blocks stay in the memory of the sender's GPU, from where the others copy them, if all GPUs reach each other's
memory. Otherwise they go through host memory, which is pinned when it is first needed.
"""

import atexit
import os
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread

import numpy as np
import torch
from torch import Tensor

from engine.api.errors import BadInput, EngineError
from engine.api.events import log
from engine.api.places import ExchangePlace
from engine.devices import memory as total_memory
from engine.distributed.device_memory import DeviceMemory, opened_bytes
from engine.distributed.memory import mapped
from engine.kv.store import KVStore
from engine.kv.tiers.exchange import ExchangeTier
from engine.kv.tiers.lender import Lender
from engine.kv.tiers.segment import Lent

_PORTABLE = 1  # a flag: pinned for all of the process's contexts
_SHARE = 10  # blocks to send take at most this part of a GPU's memory
_WORD = 8  # bytes
_pinned: list[np.ndarray] = []  # for as long as this process runs: pinned memory must not be unmapped


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
    if device.type != "cuda":
        return ExchangeTier(memory, place.segments, place.own, store)
    if place.own is not None and place.gpus and (why := why_not_direct(place.gpus, device)):
        log.warning("blocks are sent through host memory: %s", why)
    peers = GpuPeers(device, lent_bytes(option, device)) if place.gpus else None
    pinned = _Pinned(memory, device)
    tier = pinned.tier = ExchangeTier(memory, place.segments, place.own, store, pinned, peers)
    if peers is not None and peers.lent is not None:
        atexit.register(tier.close)  # a process that ends gives its GPU's memory back while it still runs
    if peers is None or (place.own is not None and peers.lent is None):
        pinned()
    return tier


def lent_bytes(option: str | None, device: torch.device) -> int:
    """Bytes of the GPU's memory through which an engine sends blocks; 0: it has no part in that."""
    place = None if option is None else ExchangePlace.parse(option)
    if place is None or place.own is None or why_not_direct(place.gpus, device):
        return 0
    each = os.stat(place.path).st_size // place.segments
    return min(each, total_memory(device) // _SHARE) // _WORD * _WORD


def why_not_direct(gpus: tuple[int, ...], device: torch.device) -> str:
    """Return why the engines on these GPUs cannot read blocks in the device's memory; empty if they can."""
    if device.type != "cuda" or not gpus:
        return f"{device} is not one of several GPUs"
    for other in gpus:
        if other != device.index and not torch.cuda.can_device_access_peer(other, device.index):
            return f"cuda:{other} cannot access the memory of {device}"
    return ""


class GpuPeers:
    """This engine's GPU memory, which others open, and that of others, which a thread opens."""

    def __init__(self, device: torch.device, nbytes: int) -> None:
        """`nbytes`: to lend."""
        self._device = device
        self._opening: dict[tuple[bytes, Lender], Future[Tensor]] = {}
        self.lent = _lent(device, nbytes) if nbytes else None

    def opened(self, handle: bytes, nbytes: int, lender: Lender) -> Tensor | None:
        key = handle, lender  # another process may have the same handle for other memory
        self._opening = {each: opening for each, opening in self._opening.items() if each[1].alive}
        if (opening := self._opening.get(key)) is None:
            thread = ThreadPoolExecutor(1, "gpu-memory")
            opening = self._opening[key] = thread.submit(opened_bytes, handle, nbytes, self._device)
            thread.shutdown(wait=False)
        if not opening.done():
            return None
        del self._opening[key]
        return opening.result()


def _lent(device: torch.device, nbytes: int) -> Lent | None:
    memory: DeviceMemory | None = None
    try:
        memory = DeviceMemory(nbytes, device)
        return Lent(memory.bytes, nbytes, memory.handle(), Lender.of(os.getpid()))
    except (EngineError, OSError, RuntimeError) as error:
        log.warning("blocks are sent through host memory: %d bytes of %s: %s", nbytes, device, error)
        if memory is not None:
            memory.close()
        return None


class _Pinned:
    """Whether the memory is pinned for this process's GPU. A thread does that once it is first asked for,
    and takes a while. Until then, nothing is sent through it.
    """

    def __init__(self, memory: np.ndarray, device: torch.device) -> None:
        self._memory, self._device = memory, device
        self._thread: Thread | None = None
        self._pinned = False
        self.tier: ExchangeTier | None = None

    def __call__(self) -> bool:
        if self._thread is None:
            self._thread = Thread(target=self._pin, name="exchange-memory", daemon=True)
            self._thread.start()
        return self._pinned

    def _pin(self) -> None:
        at, size = self._memory.ctypes.data, self._memory.nbytes
        with torch.cuda.device(self._device):
            error = int(torch.cuda.cudart().cudaHostRegister(at, size, _PORTABLE))
        if error:
            problem = f"{size} bytes of host memory cannot be pinned: CUDA error {error}"
            log.warning("no blocks are sent: %s", problem)
            if self.tier is not None:
                self.tier.problem = problem
        else:
            _pinned.append(self._memory)
        self._pinned = not error
