"""Sums and gathers of ranks that have no memory in common: over gloo, on CPUs.

Each rank gets all terms and adds them in rank order, so every rank computes the same bits. gloo cannot be
stopped: an interrupted rank leaves its group, whose connections end with it, and joins another one later.
"""

import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from engine.distributed.collective import LIMIT, Exchanged, Interrupted
from engine.distributed.groups.board import Board, BoardStore
from engine.distributed.groups.clocks import CpuClock, GpuClock
from engine.distributed.groups.process_group import process_group

_LOOK = timedelta(milliseconds=50)  # between two looks at the board
_FAILED = (RuntimeError, TimeoutError)  # what torch raises, and the board's store


def outcome(work: Any) -> str | None:
    """Wait a moment. Return why a call has failed, or nothing; None if it still runs."""
    with suppress(RuntimeError):  # it has failed, or the moment is over, in which it may have ended after all
        work.wait(_LOOK)
    if not work.is_completed():
        return None
    try:
        work.wait()
    except RuntimeError as error:
        return str(error)
    return ""


class GroupCollective:
    """For tensors on a CPU. One thread of each rank uses it, except for `interrupt`."""

    deferred = False
    recordable = False

    def __init__(
        self, rank: int, ranks: int, board: Board, name: str, device: torch.device, limit: float = LIMIT
    ) -> None:
        """`name`: of these ranks; the board may have several groups. `limit`: seconds of a call."""
        self.rank, self.ranks, self._board, self._name = rank, ranks, board, name
        self._device, self._limit = device, limit
        self._clock: CpuClock | GpuClock = CpuClock()
        self._sent = 0
        self._turn = 0  # how often all ranks were stopped
        self._store: BoardStore | None = None  # torch keeps only its C++ part alive
        self._group: Any = None

    @property
    def exchanged(self) -> Exchanged:
        return Exchanged(self._clock.busy, self._sent)

    def connect(self) -> None:
        """Meet the other ranks, which call this, too."""
        self._all_parts(torch.zeros(1, device=self._device))
        self.finish()
        self._clock.reset()
        self._sent = 0

    def sum(self, term: Tensor) -> Tensor:
        parts = self._all_parts(term)
        total = parts[0] + parts[1]
        for part in parts[2:]:
            total += part
        return total

    def gather(self, part: Tensor) -> Tensor:
        return torch.cat(self._all_parts(part).unbind(), -1)

    def interrupt(self) -> None:
        """Stop all ranks' calls, now and until `reset`. From any thread."""
        self._board.post(self._stop, b"")

    def check(self) -> None:
        """Raise if the calls of this turn were stopped."""
        if self._stopped():
            raise Interrupted("another rank has stopped")

    def finish(self) -> None:
        """A call has ended when it returns."""

    def clear(self) -> None:
        """There is nothing to take back: `reset` begins another turn."""

    def reset(self) -> None:
        self._leave()
        self._turn += 1

    def close(self) -> None:
        self._leave()

    @property
    def _stop(self) -> str:
        """The note that stops this turn."""
        return f"{self._name}/{self._turn}/stop"

    def _stopped(self) -> bool:
        return self._board.has(self._stop)

    def _all_parts(self, part: Tensor) -> Tensor:
        """[ranks, *part.shape]"""
        found = torch.empty(self.ranks, *part.shape, dtype=part.dtype, device=part.device)
        self.check()
        self._clock.begin()
        try:
            # As bytes, which all types of numbers are.
            self._exchange(*(each.view(-1).view(torch.uint8) for each in (found, part.contiguous())))
        except _FAILED as error:
            self.check()
            raise Interrupted(f"another rank is lost: {error}") from None
        finally:
            self._clock.end()
        self._sent += part.nbytes * (self.ranks - 1)
        return found

    def _exchange(self, found: Tensor, part: Tensor) -> None:
        until, work = time.monotonic() + self._limit, self._joined()._allgather_base(found, part)
        try:
            while (failure := outcome(work)) is None:
                self.check()
                if time.monotonic() > until:
                    raise Interrupted(f"another rank did not answer within {self._limit:g} seconds")
        finally:
            del work  # a traceback would keep its connections
        if failure:
            raise RuntimeError(failure)

    def _joined(self) -> Any:
        """The group of this turn."""
        if self._group is None:
            self._store = BoardStore(self._board, f"{self._name}/{self._turn}/", self._limit, self._stopped)
            self._group = process_group(
                self._store, self.rank, self.ranks, self._device, self._board.host, self._limit
            )
        return self._group

    def _leave(self) -> None:
        """Leave the group. That waits for calls that no other rank answers until it leaves, too."""
        left = [(self._group, self._store)]
        self._group = self._store = None
        threading.Thread(target=left.clear, name="leave", daemon=True).start()
