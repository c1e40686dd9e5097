"""Whether drafting pays off for a row, from the tokens it gained and the time it cost."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.scheduling.costs import Usual

TRIES, HOPELESS = 4, 2  # verifications before a row is judged; the same if no draft was accepted
REST = (64, 1024)  # tokens without drafts after a loss: the first time, and at most
INHERITED = 256  # tokens a new request pauses at most because the previous one lost
LOSES = 1.02  # a smaller gain is within the noise of step times
PLAIN_SAMPLES, REFRESH = 3, 64  # plain steps to measure first; drafting steps until the next plain one
_NEWEST = 0.1  # the weight of the newest verification
OLD = 60.0  # seconds after which the plain steps are timed again, whatever drafts there were
NEWEST = 5  # plain steps that are the baseline: they are rare, and the load of a machine changes


class Prices:
    """The cost of a drafted token, as a share of a plain step."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._plain = Usual[int](NEWEST)
        self._clock, self._timed_at = clock, dict[int, float]()  # when the newest plain step was
        self._since: dict[int, int] = {}  # drafting steps since the newest plain one
        self._extra = Usual[tuple[str, int]]()

    def observe_plain(self, rows: int, seconds: float) -> None:
        size = rows.bit_length()
        if self._old(size):
            self._plain.drop(size)
        self._plain.observe(size, seconds)
        self._since[size], self._timed_at[size] = 0, self._clock()

    def observe_drafts(self, kind: str, rows: int, drafted: int, seconds: float) -> None:
        size = rows.bit_length()
        self._since[size] = self._since.get(size, 0) + 1
        if (usual := self._plain.of(size)) is not None:
            share = (seconds - usual) / usual / drafted if usual else 0.0
            self._extra.observe((kind, size), share)

    def beyond(self, kind: str, rows: int, drafted: int, seconds: float) -> float:
        """Return what a step took longer than drafts usually do, in plain steps."""
        usual = self._plain.of(rows.bit_length())
        return max(0.0, seconds / usual - 1 - self.of(kind, rows) * drafted) if usual else 0.0

    def wants_plain(self, rows: int) -> bool:
        """Whether the next step should run without drafts, as a baseline."""
        size = rows.bit_length()
        few = self._plain.count(size) < PLAIN_SAMPLES
        return few or self._since[size] >= REFRESH or self._old(size)

    def _old(self, size: int) -> bool:
        """Whether the baseline is from before a long pause."""
        return size in self._timed_at and self._clock() - self._timed_at[size] > OLD

    def of(self, kind: str, rows: int) -> float:
        """Return the cost of a drafted token in steps of `rows` rows, or 0 with too few samples."""
        return self.known(kind, rows) or 0.0

    def known(self, kind: str, rows: int) -> float | None:
        """Return that cost, or None with too few samples. Drafts may cost nothing."""
        share = self._extra.of((kind, rows.bit_length()), TRIES)
        return None if share is None else max(0.0, share)


@dataclass(slots=True)
class AcceptanceRecord:
    """Running means over verifications of the drafted and the accepted tokens."""

    drafted: float = 0.0
    accepted: float = 0.0
    count: int = 0

    def observe(self, drafted: int, accepted: int) -> None:
        weight = max(_NEWEST, 1 / (self.count + 1))
        self.drafted += weight * (drafted - self.drafted)
        self.accepted += weight * (accepted - self.accepted)
        self.count += 1

    def gain(self, price: float, rows: int) -> float:
        """Return the speedup of a row that drafts, including the delay it causes for other rows.

        A plain step produces `rows` tokens. A longer step delays them all, so with many rows drafted tokens
        must be cheap to pay off.
        """
        return (1 + self.accepted) / (1 + rows * price * self.drafted)


@dataclass(slots=True)
class Tally:
    """Sums over all verifications, and over the tokens decoded without drafts. Tokens brought and time count
    only verifications with a known price.
    """

    verifications: int = 0
    drafted: int = 0
    accepted: int = 0
    brought: float = 0.0  # tokens gained
    took: float = 0.0  # time in plain steps, including the delay of other rows
    plain: int = 0  # tokens decoded without drafts, each in a plain step

    def observe(self, drafted: int, accepted: int, price: float | None, rows: int) -> None:
        self.verifications += 1
        self.drafted += drafted
        self.accepted += accepted
        if price is not None:
            self.brought += 1 + accepted
            self.took += 1 + rows * price * drafted

    @property
    def gain(self) -> float:
        """The speedup of all these tokens; 0: not known yet."""
        return (self.brought + self.plain) / (self.took + self.plain) if self.took else 0.0


@dataclass(slots=True)
class Judge:
    """Pauses a row's drafting when it loses time, and retries after a pause that doubles each time."""

    on: bool = True
    gain: float = 0.0  # 0: not known yet
    record: AcceptanceRecord = field(default_factory=AcceptanceRecord)
    _tried: int = 0
    _rest: int = REST[0]
    _left: int = 0  # tokens until the next attempt

    def observe(self, drafted: int, accepted: int, price: float, rows: int) -> None:
        self.record.observe(drafted, accepted)
        self.gain = self.record.gain(price, rows)
        self._tried += 1
        if self._tried < (TRIES if self.record.accepted else HOPELESS):
            return
        if self.gain < LOSES:
            self.pause()
        else:
            self._rest = REST[0]

    def successor(self) -> "Judge":
        """Return the judge for the next request. It inherits the current pause and the length of the next."""
        return Judge(on=self.on, _rest=self._rest, _left=min(self._left, INHERITED))

    def pause(self) -> None:
        self.on, self._left = False, self._rest
        self._rest = min(2 * self._rest, REST[1])

    def count_plain(self, tokens: int) -> None:
        """Count tokens that were decoded without drafts."""
        self._left -= tokens
        if self._left <= 0:
            self.on, self._tried, self.record = True, 0, AcceptanceRecord()
