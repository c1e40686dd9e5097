"""Sums and gathers between GPUs of one machine: the kernels of `exchange.py` over memory of all ranks."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import permutations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.api.config import EngineConfig
from engine.distributed.collective import Exchanged, Interrupted, SharedMemoryCollective
from engine.distributed.device_memory import Counters, DeviceMemory, MappedPages, closed, opened
from engine.kernels.triton.collective import bulk
from engine.kernels.triton.collective.exchange import (
    PROGRAMS,
    Inbox,
    exchange_gather,
    exchange_sum,
    exchange_sum_norm,
    inbox_words,
)
from engine.kernels.triton.norm.norm import Normed, normed

PAGE = 4096  # bytes of the host memory that kernels read: the stop word, then a report of each rank


def why_not(config: EngineConfig, device: torch.device) -> str:
    """Return why the GPUs from `device` on cannot be the ranks of one model; empty if they can."""
    first, ranks, there = device.index or 0, config.ranks, torch.cuda.device_count()
    if config.meet is not None and config.pp > 1:
        return "stages on several machines run on CPUs only so far"
    if config.tp > 1 and config.attention not in ("auto", "triton"):
        return f"ranks on GPUs do not support the attention backend {config.attention!r}; use triton"
    if config.meet is None and first + ranks > there:
        return f"{ranks} ranks need {ranks} GPUs from cuda:{first} on, and there are {there}"
    return ""


def why_apart(config: EngineConfig, first: int) -> str:
    """Return why the GPUs from `first` on cannot sum in each other's memory; empty if they can."""
    stages = (range(at, at + config.tp) for at in range(first, first + config.ranks, config.tp))
    return next(filter(None, map(_why_apart, stages)), "")


def _why_apart(devices: range) -> str:
    for one, other in permutations(devices, 2):
        if (programs := torch.cuda.get_device_properties(one).multi_processor_count) < PROGRAMS:
            return f"cuda:{one} has {programs} multiprocessors, and that takes {PROGRAMS}"
        if not torch.cuda.can_device_access_peer(one, other):
            return f"cuda:{one} cannot access the memory of cuda:{other}"
    return ""


class PeerCollective:
    """For tensors on a GPU. One thread of each rank uses it, except for `interrupt`."""

    deferred = True
    recordable = True

    def __init__(self, host: SharedMemoryCollective, device: torch.device) -> None:
        """`host`: between the same ranks. The stop word is in its memory, and it is not used otherwise."""
        self.rank, self.ranks, self._host, self._device = host.rank, host.ranks, host, device
        self._memory = DeviceMemory(8 * (inbox_words(self.ranks) + bulk.bulk_words(self.ranks)), device)
        self._flags = host.memory[:PAGE].view(torch.int32)
        self._seen = MappedPages(self._flags.data_ptr(), PAGE, device)
        seen = self._seen.address
        self._control = torch.tensor([0, seen, seen + 4 * (1 + self.rank), 0, 0], device=device)
        self._counters = Counters(self._control[3:])
        self._counts = torch.zeros(2 * PROGRAMS, dtype=torch.int32, device=device)
        self._inbox: Inbox | None = None
        self._others: list[int] = []

    @property
    def exchanged(self) -> Exchanged:
        """As of a moment ago: the kernels add this up."""
        nanoseconds, sent = self._counters.values()
        return Exchanged(nanoseconds / 1e9, sent)

    def handle(self) -> str:
        """What another rank needs to open this rank's inbox."""
        return self._memory.handle().hex()

    def connect(self, handles: Sequence[str]) -> None:
        """Open all other ranks' inboxes; `handles` by rank."""
        others = [
            opened(bytes.fromhex(handle), self._device) if rank != self.rank else self._memory.address
            for rank, handle in enumerate(handles)
        ]
        self._others = [each for each in others if each != self._memory.address]
        there = torch.tensor(others, device=self._device)
        self.attach(Inbox(self.rank, self.ranks, self._memory.words, there, self._counts, self._control))

    def attach(self, inbox: Inbox) -> None:
        """Exchange through this inbox."""
        self._inbox = inbox

    @property
    def inbox(self) -> Inbox:
        if self._inbox is None:
            raise RuntimeError("the ranks are not connected yet")
        return self._inbox

    def sum(self, term: Tensor) -> Tensor:
        if term.dtype not in (torch.bfloat16, torch.float32):
            return self.sum(term.float()).to(term.dtype)
        exchange = exchange_sum if term.nbytes < bulk.LEAST else bulk.sum_bulk
        return exchange(term.contiguous(), self.inbox)

    def gather(self, part: Tensor) -> Tensor:
        *shape, share = part.shape
        flat = part.contiguous().view(-1, share)
        if odd := flat.shape[1] * flat.itemsize % 4:
            flat = F.pad(flat, (0, odd // flat.itemsize))
        exchange = exchange_gather if flat.nbytes < bulk.LEAST else bulk.gather_bulk
        found = exchange(flat, self.inbox)
        if odd:
            found = found.unflatten(1, (self.ranks, -1))[:, :, :share].flatten(1)
        return found.view(*shape, self.ranks * share)

    def sum_norm(
        self, x: Tensor, parts: Tensor, weight: Tensor, eps: float, *, rounded: bool, pdl: bool = False
    ) -> Normed:
        """Add the sum of all ranks' terms to x, in place; return its norm, `rounded` to FP8 or not."""
        if x.nbytes >= bulk.LEAST or x.dtype is not torch.bfloat16:
            term = parts[0] if len(parts) == 1 else parts.sum(0)
            return normed(x, self.sum(term.to(x.dtype))[None], weight, eps, rounded=rounded)
        return exchange_sum_norm(x, parts, weight, eps, self.inbox, rounded=rounded, pdl=pdl)

    def interrupt(self) -> None:
        """Stop all ranks' exchanges, now and until `reset`. From any thread."""
        self._flags[0] = 1
        self._host.interrupt()

    def clear(self) -> None:
        """Take back the interruption. Called on one rank, once all have stopped."""
        self._flags[0] = 0
        self._host.clear()

    def check(self) -> None:
        """Raise if an exchange of a step that has ended was given up."""
        if self._flags[1 + self.rank]:
            raise Interrupted("another rank has stopped, or did not answer in time")

    def finish(self) -> None:
        """Wait until no exchange of this rank runs."""
        torch.cuda.synchronize(self._device)

    def reset(self) -> None:
        """Forget what was on the way. Called on every rank, while all have stopped."""
        self.finish()
        self._memory.words.zero_()
        self._counts.zero_()
        self._control[0] = 0
        self._flags[1 + self.rank] = 0
        self._host.reset()
        self.finish()

    def close(self) -> None:
        """Free the memory, after the other ranks have ended."""
        self._inbox = None
        with suppress(RuntimeError):  # if the GPU is lost, so is its memory
            self.finish()
            for address in self._others:
                closed(address)
            self._memory.close()
            self._seen.close()
