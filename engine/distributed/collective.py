"""Sums and gathers over the ranks of one machine, through memory they share.

Each rank writes its part, wakes the others, waits for theirs, and reads all parts in rank order. So every
rank computes the same bits. There are two places for each part, which alternate: a rank that writes to a
place again has received all parts of the exchange in between, so the others have read what was there.
"""

import os
import select
import time
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from engine.api.errors import EngineError
from engine.distributed.crews.wires import PLACE, Wires, memory_size
from engine.distributed.memory import mapped
from engine.distributed.waiting import readable

LIMIT = 600.0  # seconds a rank waits for another, which may be loading or compiling


class Interrupted(EngineError):
    """A collective call ended early: another rank has failed or is lost."""


class Exchanged(NamedTuple):
    """What a rank has exchanged so far."""

    seconds: float = 0.0  # spent in sums and gathers, most of it waiting for the others
    sent: int = 0  # bytes, to all others


class RankCollective(Protocol):
    """A collective of processes, and how its calls are stopped when one of them fails."""

    rank: int
    ranks: int
    deferred: bool  # whether a call may run after it has returned, on a GPU
    recordable: bool  # whether a CUDA graph can contain calls

    @property
    def exchanged(self) -> Exchanged:
        """What this rank has spent and sent so far."""

    def sum(self, term: Tensor) -> Tensor: ...

    def gather(self, part: Tensor) -> Tensor: ...

    def interrupt(self) -> None:
        """Stop all ranks' calls, now and until `reset`. From any thread."""

    def check(self) -> None:
        """Raise Interrupted if a call of a step that has ended was stopped."""

    def finish(self) -> None:
        """Wait until none of this rank's calls runs."""

    def clear(self) -> None:
        """Take back the interruption. Called on one rank, once all have stopped."""

    def reset(self) -> None:
        """Forget the parts that were on the way. Called on every rank, while all have stopped."""

    def close(self) -> None:
        """Free what it has. Called on rank 0, after the others have ended."""


class SharedMemoryCollective:
    """For tensors on a CPU. One thread of each rank uses it."""

    deferred = False
    recordable = False

    def __init__(self, rank: int, wires: Wires, limit: float = LIMIT) -> None:
        self.rank, self.ranks, self.exchanged = rank, len(wires.wake), Exchanged()
        self._wires, self._limit, self._turn = wires, limit, 0
        size = memory_size(self.ranks)
        whole = torch.frombuffer(mapped(wires.memory, size), dtype=torch.uint8)
        self._places = whole.view(2, self.ranks, PLACE)
        self.memory = whole  # common to all ranks
        self._sources = {fd: other for other, fd in enumerate(wires.woken) if fd >= 0}
        self._poll = select.poll()
        for fd in (*self._sources, wires.alarm[0]):
            self._poll.register(fd, select.POLLIN)

    def sum(self, term: Tensor) -> Tensor:
        out = torch.empty(term.shape, dtype=term.dtype)
        flat, into = term.contiguous().view(-1), out.view(-1)
        for here, parts in self._exchanges(flat):
            total = torch.add(parts[0], parts[1], out=into[here])
            for part in parts[2:]:
                total += part
        return out

    def gather(self, part: Tensor) -> Tensor:
        flat = part.contiguous().view(-1)
        found = torch.empty(self.ranks, len(flat), dtype=part.dtype)
        for here, parts in self._exchanges(flat):
            for rank, each in enumerate(parts):
                found[rank, here] = each
        return torch.cat([each.view(part.shape) for each in found], -1)

    def interrupt(self) -> None:
        os.write(self._wires.alarm[1], b"!")

    def check(self) -> None:
        """A call that was stopped has raised already."""

    def finish(self) -> None:
        """A call has ended when it returns."""

    def clear(self) -> None:
        while readable(self._wires.alarm[0], 0):
            os.read(self._wires.alarm[0], PLACE)

    def reset(self) -> None:
        for fd in self._sources:
            while readable(fd, 0):
                os.read(fd, PLACE)
        self._turn = 0

    def close(self) -> None:
        """The memory is freed with this object."""

    def _exchanges(self, flat: Tensor) -> Iterator[tuple[slice, list[Tensor]]]:
        """Exchange a tensor in pieces: where each is, and all ranks' numbers for it, valid until the next."""
        most = PLACE // flat.dtype.itemsize
        for at in range(0, len(flat), most):
            piece = flat[at : at + most]
            places = self._places[self._turn, :, : piece.nbytes].view(flat.dtype)
            places[self.rank] = piece
            began = time.perf_counter()
            self._meet()
            seconds, sent = self.exchanged
            self.exchanged = Exchanged(seconds + time.perf_counter() - began, sent + piece.nbytes)
            self._turn = 1 - self._turn
            yield slice(at, at + len(piece)), list(places)

    def _meet(self) -> None:
        """Report this rank's part, and wait until all other ranks have reported."""
        for fd in self._wires.wake:
            if fd >= 0:
                try:
                    os.write(fd, b".")
                except BrokenPipeError:
                    raise Interrupted("another rank has ended") from None
        missing = set(self._sources)
        while missing:
            if not (ready := self._poll.poll(self._limit * 1e3)):
                late = ", ".join(str(self._sources[fd]) for fd in sorted(missing))
                raise Interrupted(f"rank {late} did not answer within {self._limit:g} seconds")
            for fd, _ in ready:
                if fd == self._wires.alarm[0]:
                    raise Interrupted("another rank has stopped")
                if fd in missing:
                    if not os.read(fd, 1):
                        raise Interrupted(f"rank {self._sources[fd]} has ended")
                    missing.discard(fd)
