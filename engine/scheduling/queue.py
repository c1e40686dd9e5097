"""The waiting queue: a heap by rank with removal at any position, and parked requests beside it."""

import heapq
from collections.abc import Callable, Iterator

from engine.api.request import Request

_SLACK = 64  # stale heap entries that are not worth a cleanup

Rank = tuple[float, ...]


class WaitingQueue:
    """Push, remove and peek do not slow down with the queue's length."""

    def __init__(self, rank: Callable[[Request], Rank]) -> None:
        self._rank = rank
        self._heap: list[tuple[Rank, int]] = []
        self._waiting: dict[int, Request] = {}
        self.parked: dict[int, Request] = {}  # they wait for something that is computed elsewhere
        self.held: set[int] = set()  # the parked ones whose prompt another engine computes

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting.values())

    def push(self, request: Request) -> None:
        self._waiting[request.id] = request
        heapq.heappush(self._heap, (self._rank(request), request.id))

    def head(self) -> Request | None:
        while self._heap:
            request = self._waiting.get(self._heap[0][1])
            if request is not None:
                return request
            heapq.heappop(self._heap)  # the request was removed from the queue
        return None

    def first(self, count: int) -> list[Request]:
        """The next requests, by rank. This does not slow down with the queue's length either."""
        found: dict[int, Request] = {}
        near = [(self._heap[0], 0)] if self._heap else []  # entries whose parents in the heap were taken
        while near and len(found) < count:
            (_, name), at = heapq.heappop(near)
            if name in self._waiting:
                found[name] = self._waiting[name]
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(self._heap):
                    heapq.heappush(near, (self._heap[child], child))
        return list(found.values())

    def park(self, request: Request) -> None:
        """Park a request that has nothing to compute until its next token is decided."""
        self.parked[request.id] = request

    def hold(self, request: Request) -> None:
        """Park a request of the queue until another engine has computed its prompt."""
        self.remove(request)
        self.park(request)
        self.held.add(request.id)
        request.why = "another engine computes its prompt"

    def proceed(self, request: Request) -> None:
        """Queue a held request again. No-op if it is not held."""
        if request.id in self.held:
            self.wake(request)
            request.why = "queued"

    def wake(self, request: Request) -> None:
        """Queue a parked request again. No-op if it was not parked: it continues in its slot."""
        self.held.discard(request.id)
        if self.parked.pop(request.id, None):
            self.push(request)

    def clear(self) -> None:
        self._heap.clear()
        self._waiting.clear()
        self.parked.clear()
        self.held.clear()

    def remove(self, request: Request) -> None:
        """Remove a request."""
        self.held.discard(request.id)
        if self.parked.pop(request.id, None):
            return
        del self._waiting[request.id]
        if self._heap and self._heap[0][1] == request.id:
            heapq.heappop(self._heap)
        elif len(self._heap) > 2 * len(self._waiting) + _SLACK:  # many stale entries behind the head
            self._heap = [entry for entry in self._heap if entry[1] in self._waiting]
            heapq.heapify(self._heap)
