"""A limit on the choices that clients may have in flight at once."""

from collections import Counter

from engine.api.errors import BadParams, QueueFull
from engine.server.http.errors import ApiError

_RETRY_AFTER = 1  # seconds


class ConcurrencyLimiter:
    """Counts the requests in flight, and their choices in total and per key."""

    def __init__(self, most: int, most_of_a_key: int) -> None:
        self.most, self.most_of_a_key = most, most_of_a_key
        self.requests = 0
        self._held: Counter[bytes] = Counter()

    @property
    def in_flight(self) -> int:
        return self._held.total()

    def enter(self, key: bytes, choices: int, name: str) -> "Ticket":
        """Reserve places. `name`: the request parameter that set the number of choices."""
        if choices > min(self.most, self.most_of_a_key):  # waiting would not help
            most = min(self.most, self.most_of_a_key)
            whose = "a key" if key else "a server without keys"
            raise BadParams(name, f"asks for {choices} choices at once, and {whose} may have at most {most}")
        if self._held[key] + choices > self.most_of_a_key:
            full = QueueFull(
                f"this {'key' if key else 'server, without keys,'} has {self._held[key]} choices in flight, "
                f"and may have {self.most_of_a_key}; retry when some have finished"
            )
            raise ApiError(429, str(full), code="rate_limit_exceeded", retry_after=_RETRY_AFTER, cause=full)
        if self._held.total() + choices > self.most:
            raise QueueFull(
                f"{self._held.total()} choices are in flight, and the server takes {self.most}; retry later"
            )
        self._held[key] += choices
        self.requests += 1
        return Ticket(self, key, choices)

    def leave(self, key: bytes, choices: int) -> None:
        self.requests -= 1
        self._held[key] -= choices
        if not self._held[key]:
            del self._held[key]


class Ticket:
    """Reserved places for some choices. Giving them back twice is harmless."""

    def __init__(self, gate: ConcurrencyLimiter, key: bytes, choices: int) -> None:
        self._gate, self._key, self._choices = gate, key, choices

    def release(self) -> None:
        if self._choices:
            self._gate.leave(self._key, self._choices)
            self._choices = 0
