"""Whether drafting pays, by what it has brought a row and what it has cost here."""

from collections import deque
from dataclasses import dataclass, field

TRIES, HOPELESS = 4, 2  # verifications before a row may be judged; before one that was never right is
REST = (64, 1024)  # tokens without drafts after a loss: the first time, and at most
INHERITED = 256  # tokens that a new request rests at most because the one before it lost
LOSES = 1.02  # a gain below this is none: steps are not measured better
PLAIN_SAMPLES, REFRESH = 3, 64  # steps without drafts that must be known; and drafting steps until another
_SAMPLES = 31
_NEWEST = 0.1  # the weight of the newest verification


class Prices:
    """What a drafted token costs, as a share of a plain step.

    Others on the machine only ever make a step longer, so the lower quartile of its times is what it takes.
    """

    def __init__(self) -> None:
        self._plain: dict[int, deque[float]] = {}
        self._since: dict[int, int] = {}  # drafting steps since the newest plain one
        self._extra: dict[tuple[str, int], deque[float]] = {}

    def saw_plain(self, rows: int, seconds: float) -> None:
        size = rows.bit_length()
        if (samples := self._plain.get(size)) is None:
            samples = self._plain[size] = deque(maxlen=_SAMPLES)
        samples.append(seconds)
        self._since[size] = 0

    def saw_drafts(self, kind: str, rows: int, drafted: int, seconds: float) -> None:
        size = rows.bit_length()
        self._since[size] = self._since.get(size, 0) + 1
        if (plain := self._plain.get(size)) is not None:
            usual = _usual(plain)
            share = (seconds - usual) / usual / drafted if usual else 0.0
            self._extra.setdefault((kind, size), deque(maxlen=_SAMPLES)).append(share)

    def wants_plain(self, rows: int) -> bool:
        """Whether the next step should go without drafts, so that there is something to compare with."""
        size = rows.bit_length()
        return len(self._plain.get(size, ())) < PLAIN_SAMPLES or self._since[size] >= REFRESH

    def of(self, kind: str, rows: int) -> float:
        """One drafted token, as a share of a plain step of so many rows; 0 until it was seen often."""
        seen = self._extra.get((kind, rows.bit_length()))
        return max(0.0, _usual(seen)) if seen and len(seen) >= TRIES else 0.0


def _usual(samples: deque[float]) -> float:
    return sorted(samples)[len(samples) // 4]


@dataclass(slots=True)
class AcceptanceRecord:
    """Running means of verifications: what was drafted, and what of it stood."""

    drafted: float = 0.0
    accepted: float = 0.0
    count: int = 0

    def saw(self, drafted: int, accepted: int) -> None:
        weight = max(_NEWEST, 1 / (self.count + 1))
        self.drafted += weight * (drafted - self.drafted)
        self.accepted += weight * (accepted - self.accepted)
        self.count += 1

    def gain(self, price: float, rows: int) -> float:
        """How many times as fast a row goes that drafts, counting what it costs the rows beside it.

        A step without drafts brings `rows` tokens. One that takes longer delays them all, so at many rows an
        accepted token must be cheap to be worth it.
        """
        return (1 + self.accepted) / (1 + rows * price * self.drafted)


@dataclass(slots=True)
class Tally:
    """Sums over all verifications so far, and of those whose price was known, what they took."""

    verifications: int = 0
    drafted: int = 0
    accepted: int = 0
    brought: float = 0.0  # tokens
    took: float = 0.0  # in plain steps, counting what the rows beside it have waited

    def saw(self, drafted: int, accepted: int, price: float, rows: int) -> None:
        self.verifications += 1
        self.drafted += drafted
        self.accepted += accepted
        if price:
            self.brought += 1 + accepted
            self.took += 1 + rows * price * drafted

    @property
    def gain(self) -> float:
        """How many times as fast these went; 0: not known yet."""
        return self.brought / self.took if self.took else 0.0


@dataclass(slots=True)
class Judge:
    """Switches one row's drafting off where it loses, and tries again after a rest that grows."""

    on: bool = True
    gain: float = 0.0  # 0: not known yet
    record: AcceptanceRecord = field(default_factory=AcceptanceRecord)
    _tried: int = 0
    _rest: int = REST[0]
    _left: int = 0  # tokens until the next try

    def saw(self, drafted: int, accepted: int, price: float, rows: int) -> None:
        self.record.saw(drafted, accepted)
        self.gain = self.record.gain(price, rows)
        self._tried += 1
        if self._tried < (TRIES if self.record.accepted else HOPELESS):
            return
        if self.gain < LOSES:
            self.pause()
        else:
            self._rest = REST[0]

    def heir(self) -> "Judge":
        """For the next request: it goes on with the rest of this one, and falls back into a longer one."""
        return Judge(on=self.on, _rest=self._rest, _left=min(self._left, INHERITED))

    def pause(self) -> None:
        self.on, self._left = False, self._rest
        self._rest = min(2 * self._rest, REST[1])

    def rested(self, tokens: int) -> None:
        """So many tokens came without drafts."""
        self._left -= tokens
        if self._left <= 0:
            self.on, self._tried, self.record = True, 0, AcceptanceRecord()
