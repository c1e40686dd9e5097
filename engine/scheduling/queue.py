"""The waiting line: a heap by rank, from which requests may leave at any place. Some lie parked beside it."""

import heapq
from collections.abc import Callable, Iterator

from engine.api.request import Request

_SLACK = 64  # entries of those who left that are not worth a clean-up

Rank = tuple[float, ...]


class WaitingQueue:
    """Entering, leaving and looking at the head cost the same however long the line is."""

    def __init__(self, rank: Callable[[Request], Rank]) -> None:
        self._rank = rank
        self._heap: list[tuple[Rank, int]] = []
        self._waiting: dict[int, Request] = {}
        self.parked: dict[int, Request] = {}  # gave way while others decide how they go on
        self.tokens = 0  # that those in line have yet to compute, about

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting.values())

    def push(self, request: Request) -> None:
        self._waiting[request.id] = request
        self.tokens += request.known - request.launched
        heapq.heappush(self._heap, (self._rank(request), request.id))

    def head(self) -> Request | None:
        while self._heap:
            request = self._waiting.get(self._heap[0][1])
            if request is not None:
                return request
            heapq.heappop(self._heap)  # it left the line long ago
        return None

    def park(self, request: Request) -> None:
        """It has nothing to compute before others decide how it goes on."""
        self.parked[request.id] = request

    def wake(self, request: Request) -> None:
        """That is decided. One that was not parked runs, and goes on in its row."""
        if self.parked.pop(request.id, None):
            self.push(request)

    def clear(self) -> None:
        self._heap.clear()
        self._waiting.clear()
        self.parked.clear()
        self.tokens = 0

    def remove(self, request: Request) -> None:
        """Takes it out. What it has computed must be as it was when it came in."""
        if self.parked.pop(request.id, None):
            return
        del self._waiting[request.id]
        self.tokens -= request.known - request.launched
        if self._heap and self._heap[0][1] == request.id:
            heapq.heappop(self._heap)
        elif len(self._heap) > 2 * len(self._waiting) + _SLACK:  # many have left from behind the head
            self._heap = [entry for entry in self._heap if entry[1] in self._waiting]
            heapq.heapify(self._heap)
