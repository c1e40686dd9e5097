"""Streams between stages that have only sockets in common: over gloo, on CPUs.

gloo's own messages cannot be interrupted. So each two neighbors have a group, in which the earlier stage
broadcasts, and which is left if a rank is lost.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import BroadcastOptions

from engine.distributed.collective import LIMIT
from engine.distributed.groups.board import Board, BoardStore
from engine.distributed.groups.group import outcome
from engine.distributed.groups.process_group import process_group


class Neighbors:
    """What a link between stages uses of a group of torch.distributed."""

    def __init__(
        self,
        rank: int,
        before: int | None,
        after: int | None,
        board: Board,
        given_up: Callable[[], bool] = lambda: False,
        limit: float = LIMIT,
    ) -> None:
        """Wait until the others are there. `before`, `after`: the ranks that send, and that receive.
        `given_up`: whether not to wait any more, looked at after each note. `limit`: seconds of a call.
        """
        self._board, self._given_up, self._limit = board, given_up, limit
        self._stopped = threading.Event()
        self._joined: dict[int, tuple[Any, BoardStore]] = {}  # torch keeps only a store's C++ part alive
        if before is not None:
            self._join(before, sender=before, place=1)
        if after is not None:
            self._join(after, sender=rank, place=0)

    def recv(self, streams: list[Tensor], source: int, _tag: int) -> "BoundedWork":
        return self._broadcast(streams, source)

    def send(self, streams: list[Tensor], target: int, _tag: int) -> "BoundedWork":
        return self._broadcast(streams, target)

    def abort(self) -> None:
        """End all calls. From any thread."""
        left, self._joined = [self._joined], {}
        self._stopped.set()
        threading.Thread(target=left.clear, name="leave", daemon=True).start()  # that waits for the others

    def _join(self, other: int, *, sender: int, place: int) -> None:
        store = BoardStore(self._board, f"streams of {sender}/", self._limit, self._given_up)
        group = process_group(store, place, 2, torch.device("cpu"), self._board.host, self._limit)
        self._joined[other] = group, store

    def _broadcast(self, streams: list[Tensor], other: int) -> "BoundedWork":
        if (found := self._joined.get(other)) is None:
            raise RuntimeError("a rank is lost")
        return BoundedWork(found[0].broadcast(streams, BroadcastOptions()), self._limit, self._stopped)


class BoundedWork:
    def __init__(self, work: Any, limit: float, stopped: threading.Event) -> None:
        self._work, self._limit, self._stopped = work, limit, stopped

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def wait(self) -> None:
        try:
            self._wait(time.monotonic() + self._limit)
        finally:
            self._work = None  # a traceback would keep its connections

    def _wait(self, until: float) -> None:
        while (failure := outcome(self._work)) is None:
            if self._stopped.is_set():
                raise RuntimeError("a rank is lost")
            if time.monotonic() > until:
                raise RuntimeError(f"it did not answer within {self._limit:g} seconds")
        if failure:
            raise RuntimeError(failure)
