"""The waiting line: a heap by rank, from which requests may leave at any place."""

import heapq
from collections.abc import Callable, Iterator

from engine.request import Request

_SLACK = 64  # entries of those who left that are not worth a clean-up

Rank = tuple[float, ...]


class WaitingQueue:
    """Entering, leaving and looking at the head cost the same however long the line is."""

    def __init__(self, rank: Callable[[Request], Rank]) -> None:
        self._rank = rank
        self._heap: list[tuple[Rank, int]] = []
        self._waiting: dict[int, Request] = {}
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

    def remove(self, request: Request) -> None:
        """Takes it out. What it has computed must be as it was when it came in."""
        del self._waiting[request.id]
        self.tokens -= request.known - request.launched
        if self._heap and self._heap[0][1] == request.id:
            heapq.heappop(self._heap)
        elif len(self._heap) > 2 * len(self._waiting) + _SLACK:  # many have left from behind the head
            self._heap = [entry for entry in self._heap if entry[1] in self._waiting]
            heapq.heapify(self._heap)
