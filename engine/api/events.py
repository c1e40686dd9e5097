"""What the engine says as it works. The bus is synchronous: a handler only hands off, never works."""

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from engine.api.request import Finish

log = logging.getLogger("minichat.engine")
log.addHandler(logging.NullHandler())  # a library is silent unless its program listens


class TokenLogprob(NamedTuple):
    """How likely the chosen token was, and its strongest rivals."""

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


class Delta(NamedTuple):
    """What one step added to one reply. The last one of a reply has a finish.

    Where a request has several replies, `choice` tells them apart; `tail` is what may still be taken back,
    and stands only until the next delta of its choice.
    """

    request: int
    tokens: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None
    error: str = ""
    choice: int = 0
    left: int = 0  # with a finish: replies of the request that are still to end
    tail: str = ""
    score: float | None = None  # with a finish, of beams and of the best of several: what they were ranked by
    fault: str = ""  # with an error: the sampling parameter that is to blame, if it is the request's own
    blocks: int = 0  # with a finish: those of the cache that it held; of a search, all its hypotheses

    @property
    def last(self) -> bool:
        """Whether nothing comes after it."""
        return self.finish is not None and not self.left


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened. `kind` is the class's name in small letters."""

    step: int
    at: float  # on the engine's clock

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Queued(Event):
    request: int
    prompt: int


@dataclass(frozen=True, slots=True)
class Admitted(Event):
    request: int
    cached: int  # tokens that the prefix cache had


@dataclass(frozen=True, slots=True)
class Preempted(Event):
    request: int
    swapped: bool
    blocks: int


@dataclass(frozen=True, slots=True)
class Resumed(Event):
    request: int
    swapped: bool
    cached: int


@dataclass(frozen=True, slots=True)
class Transferred(Event):
    """Blocks of a request are in a tier below the device, or back from there. `error`: why they are not."""

    request: int
    tier: str
    load: bool
    blocks: int
    seconds: float
    error: str


@dataclass(frozen=True, slots=True)
class Copied(Event):
    request: int
    block: int
    to: int


@dataclass(frozen=True, slots=True)
class Forked(Event):
    request: int
    parent: int
    blocks: int


@dataclass(frozen=True, slots=True)
class FirstToken(Event):
    request: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Updated(Event):
    request: int
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Evicted(Event):
    """Cached blocks made way, so many since this was said before; said once a second at most."""

    blocks: int


@dataclass(frozen=True, slots=True)
class Switched(Event):
    """A technique was turned off or on; `name` is one of the snapshot's switches."""

    name: str
    on: bool


@dataclass(frozen=True, slots=True)
class Quantizing(Event):
    """The weights are on their way to another scheme, and no step is taken."""

    scheme: str
    done: int  # layers; they grow fewer on the way back
    total: int


@dataclass(frozen=True, slots=True)
class Quantized(Event):
    """The way is over. With an error, `scheme` was wanted and the one before stands."""

    scheme: str
    before: str
    blocks: int  # of the cache, from now on
    seconds: float
    error: str


@dataclass(frozen=True, slots=True)
class Recached(Event):
    """The cache is empty, and has another form."""

    scheme: str
    blocks: int


@dataclass(frozen=True, slots=True)
class Finished(Event):
    request: int
    finish: str
    tokens: int
    error: str


@dataclass(frozen=True, slots=True)
class StepBroke(Event):
    error: str
    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Died(Event):
    error: str


Handler = Callable[[Event], None]


class Bus:
    """Handlers come from any thread, and run on the engine's. One that raises is dropped, and logged."""

    def __init__(self) -> None:
        self._handlers: tuple[Handler, ...] = ()
        self._changing = threading.Lock()

    def subscribe(self, handler: Handler) -> Callable[[], None]:
        with self._changing:
            self._handlers = (*self._handlers, handler)
        return lambda: self._drop(handler)

    def emit(self, event: Event) -> None:
        for handler in self._handlers:
            try:
                handler(event)
            except Exception:
                log.exception("a subscriber failed on %s and is dropped", event.kind)
                self._drop(handler)

    def _drop(self, handler: Handler) -> None:
        with self._changing:
            self._handlers = tuple(each for each in self._handlers if each is not handler)
