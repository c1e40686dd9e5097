"""A client process that sends many streamed requests at given times and notes when the pieces arrive."""

import json
import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

_STATUS = slice(9, 12)  # of the first line
_DATA = b"data: "
_END = b"\n\n"  # of an event
_LONGEST = 1000  # bytes kept of an event that has not ended
_DONE = b"data: [DONE]"
_USAGE = b'"usage":{'


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """One request: when to send it, in seconds from the start, and the whole HTTP message."""

    at: float
    message: bytes


@dataclass(slots=True)
class Outcome:
    """What a request got. Times are in seconds; `gaps` are those between arrivals of its pieces."""

    sent: float
    first: float | None = None  # from sending to the first piece
    ended: float | None = None  # from sending to the end
    gaps: list[float] = field(default_factory=list)
    prompt: int = 0  # tokens
    completion: int = 0
    error: str = ""


@dataclass(slots=True)
class Exchange:
    """A connection and the request on it."""

    connection: socket.socket
    outcome: Outcome
    unsent: memoryview
    due: float  # when it was due and had a place; so its times include those of connecting
    latest: float = 0.0
    tail: bytes = b""
    status: bytes = b""

    def send(self) -> None:
        """Send what fits. If the server has closed its side, `receive` says why."""
        try:
            self.unsent = self.unsent[self.connection.send(self.unsent) :]
        except OSError:
            self.unsent = self.unsent[:0]

    def receive(self, now: float) -> bool:
        """Read what has arrived. False once the request has ended."""
        try:
            data = self.connection.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError as error:
            return self._fail(str(error))
        if not data:
            return self._fail("the server closed the connection")
        text = self.tail + data
        if not self.status:
            if len(text) < _STATUS.stop:
                self.tail = text
                return True
            self.status = text[_STATUS]
        if self.status != b"200":
            return self._fail(text[-300:].decode(errors="replace"))
        one = self.outcome
        if _END in self.tail[-1:] + data and _DATA in text:
            if one.first is None:
                one.first = now - self.due
            else:
                one.gaps.append(now - self.latest)
            self.latest = now
        if _USAGE in text:
            self._count(text)
        if _DONE in text:
            one.ended = now - self.due
            return False
        self.tail = text[max(0, text.rfind(_END)) :][-_LONGEST:]
        return True

    def _count(self, text: bytes) -> None:
        start = text.rindex(_USAGE) + len(_USAGE) - 1
        try:
            usage, _ = json.JSONDecoder().raw_decode(text[start:].decode(errors="replace"))
        except ValueError:
            return  # the rest has not arrived yet
        self.outcome.prompt, self.outcome.completion = usage["prompt_tokens"], usage["completion_tokens"]

    def _fail(self, why: str) -> bool:
        self.outcome.error = why
        return False


def work(pipe: Connection, address: tuple[str, int]) -> None:
    """Take (orders, most at once), run them, and send the outcomes. None ends the process."""
    while (task := pipe.recv()) is not None:
        orders, most = task
        pipe.send(LoadClients(address, orders, most).run())


class LoadClients:
    """Sends each order when it is due and a place is free."""

    def __init__(self, address: tuple[str, int], orders: Sequence[TimedRequest], most: int) -> None:
        self._address = address
        self._waiting = deque(sorted(orders, key=lambda order: order.at))
        self._selector = selectors.DefaultSelector()
        self._places = deque[float]([0.0] * most)  # when each became free
        self._outcomes: list[Outcome] = []
        self._began = 0.0

    def run(self) -> list[Outcome]:
        self._began = time.perf_counter()
        self.send_due()
        while self._waiting or self._selector.get_map():
            for key, events in self._selector.select(self._until_next()):
                self._progress(key.data, events)
            self.send_due()
        return self._outcomes

    def _until_next(self) -> float | None:
        """Seconds until the next order is due; None if only an answer can change something."""
        if not self._waiting or not self._places:
            return None
        return max(0.0, self._began + self._waiting[0].at - time.perf_counter())

    def send_due(self) -> None:
        now = time.perf_counter()
        while self._waiting and self._places and self._began + self._waiting[0].at <= now:
            order = self._waiting.popleft()
            due = max(self._began + order.at, self._places.popleft())
            outcome = Outcome(now - self._began)
            try:
                connection = socket.create_connection(self._address)
            except OSError as error:
                outcome.error = str(error)
                self._end(outcome)
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)
            exchange = Exchange(connection, outcome, memoryview(order.message), due)
            self._selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, exchange)

    def _progress(self, exchange: Exchange, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            exchange.send()
            if not exchange.unsent:
                self._selector.modify(exchange.connection, selectors.EVENT_READ, exchange)
        if events & selectors.EVENT_READ and not exchange.receive(time.perf_counter()):
            self._selector.unregister(exchange.connection)
            exchange.connection.close()
            self._end(exchange.outcome)

    def _end(self, outcome: Outcome) -> None:
        self._places.append(time.perf_counter())
        self._outcomes.append(outcome)
