"""The engine's events. The bus is synchronous, so a handler must only hand events off."""

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from engine.api.request import Finish
from engine.api.speculation import Speculation

log = logging.getLogger("minichat.engine")
log.addHandler(logging.NullHandler())  # a library logs nothing unless its program configures logging


class TokenLogprob(NamedTuple):
    """The chosen token's log-probability, and the most likely alternatives."""

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


class Delta(NamedTuple):
    """What one step added to a reply. The last delta of a reply has a finish.

    If a request has several replies, `choice` distinguishes them. `tail` is text that may still change; it
    is valid until the next delta of the same choice. Log-probabilities of the prompt come before the first
    token, in deltas of choice 0 that hold nothing else; so does the prompt's pooled hidden state.
    """

    request: int
    tokens: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None
    error: str = ""
    choice: int = 0
    left: int = 0  # with a finish: replies of the request that have yet to end
    tail: str = ""
    score: float | None = None  # with a finish, of beam search and best_of: the ranking score
    fault: str = ""  # with an error: the sampling parameter that caused it, if one did
    blocks: int = 0  # with a finish: cache blocks it held; of a search, all hypotheses'
    stop: str = ""  # with a finish: the stop string that ended the reply, if one did
    prompt_logprobs: tuple[TokenLogprob, ...] = ()  # of the next prompt tokens; the first token has none
    loaded: int = 0  # with a finish: prompt tokens whose keys and values a tier had
    tier: str = ""  # with `loaded`: the tier
    saved: float = 0.0  # with `loaded`: seconds, at least, that computing them would have taken longer
    decoding: float = 0.0  # with a finish: seconds from its first token to its last; 0 if that is not known
    speculation: Speculation | None = None  # with a finish: what its drafts brought; None: it never drafted
    unsent: int = 0  # with a finish, of best_of: tokens of the replies that were not among the best
    pooled: bytes = b""  # with pooling: the prompt's vector, as float32 in little-endian order

    @property
    def of_prompt(self) -> bool:
        return bool(self.prompt_logprobs or self.pooled)

    @property
    def last(self) -> bool:
        """Whether this is the request's last delta."""
        return self.finish is not None and not self.left


@dataclass(frozen=True, slots=True)
class Event:
    """The base class of events. `kind` is the class's name in lower case."""

    step: int
    at: float  # on the engine's clock

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True, slots=True)
class RequestEvent(Event):
    """The base class of events that concern one request."""

    request: int


@dataclass(frozen=True, slots=True)
class Queued(RequestEvent):
    prompt: int
    generated: int = 0  # tokens of a reply that it begins with


@dataclass(frozen=True, slots=True)
class Admitted(RequestEvent):
    cached: int  # tokens found in the prefix cache, or loaded from a tier
    tier: str = ""  # the tier that had more of them than the device
    held: int = 0  # tokens that it had
    loaded: bool = False  # whether these were loaded, or computed again
    loading: float = 0.0  # expected seconds of either, by measurement; 0: not measured yet
    computing: float = 0.0


@dataclass(frozen=True, slots=True)
class Preempted(RequestEvent):
    swapped: bool
    blocks: int
    tier: str = ""  # where they were stored, if swapped


@dataclass(frozen=True, slots=True)
class Resumed(RequestEvent):
    swapped: bool
    cached: int


@dataclass(frozen=True, slots=True)
class Transferred(RequestEvent):
    """A store to a lower tier or a load from it has ended. `error`: why it failed.

    A tier on disk writes later what it has stored. `seconds`: at least those that the engine waited.
    """

    tier: str
    load: bool
    blocks: int
    seconds: float
    error: str


@dataclass(frozen=True, slots=True)
class BlocksSent(RequestEvent):
    """The blocks of a request that was submitted with `sends` have reached the memory of other engines."""

    blocks: int  # those that were not there before
    way: str = ""  # "gpu": from GPU to GPU; "host": through host memory


@dataclass(frozen=True, slots=True)
class TierProblem(Event):
    """A tier below the device has begun to store nothing, or stores blocks again."""

    tier: str
    problem: str  # empty: it stores blocks again


@dataclass(frozen=True, slots=True)
class Copied(RequestEvent):
    block: int
    to: int


@dataclass(frozen=True, slots=True)
class Forked(RequestEvent):
    parent: int
    blocks: int
    group: int = -1  # the request that both help to answer, if they do


@dataclass(frozen=True, slots=True)
class FirstToken(RequestEvent):
    seconds: float
    generated: int = 1  # tokens of the reply so far; more if it continues another


@dataclass(frozen=True, slots=True)
class Updated(RequestEvent):
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Evicted(RequestEvent):
    """Cached blocks were evicted: the number since the last such event of that request."""

    request: int = -1  # that took their space; -1: none, the cache got smaller
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class BlockNamesChanged(Event):
    """Blocks became findable in the prefix cache, or are no longer. Sent after `ReportBlocks`."""

    added: tuple[str, ...]  # short names
    dropped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Switched(Event):
    """A technique was switched on or off. `name` is one of the snapshot's switches."""

    name: str
    on: bool


@dataclass(frozen=True, slots=True)
class Quantizing(Event):
    """The weights are being converted to another scheme. No steps run."""

    scheme: str
    done: int  # layers converted; decreases when a change is rolled back
    total: int


@dataclass(frozen=True, slots=True)
class Quantized(Event):
    """A conversion has ended. With an error, the previous scheme is still in use."""

    scheme: str
    before: str
    blocks: int  # the cache's new size
    seconds: float
    error: str


@dataclass(frozen=True, slots=True)
class Recached(Event):
    """The cache was emptied and rebuilt in another scheme."""

    scheme: str
    blocks: int


@dataclass(frozen=True, slots=True)
class AdapterChanged(Event):
    """A LoRA adapter was loaded, or dropped."""

    name: str
    loaded: bool


class Ended(NamedTuple):
    """The end of a reply, and its length."""

    finish: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Finished(RequestEvent):
    finish: str
    tokens: int
    error: str
    others: tuple[Ended, ...] = ()  # further replies of a beam search


@dataclass(frozen=True, slots=True)
class StepBroke(Event):
    error: str
    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Died(Event):
    error: str


@dataclass(frozen=True, slots=True)
class Restarting(Event):
    """The engine's process has ended, and is started again after a pause of `seconds`."""

    error: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Restarted(Event):
    """The engine is ready again, `seconds` after it ended. Its steps count from 0."""

    seconds: float


@dataclass(frozen=True, slots=True)
class PromptRouted(RequestEvent):
    """A fleet has chosen a replica for a request."""

    replica: int
    cached: int  # blocks of the prompt that the replica has, or computes for another request
    blocks: int  # whole blocks of the prompt
    best: int  # the most that any replica has of them


@dataclass(frozen=True, slots=True)
class PromptSent(RequestEvent):
    """Another engine of a fleet has computed a request's prompt. `error`: why it has not."""

    source: int  # the replica that computed it
    blocks: int  # whole blocks of the prompt
    sent: int  # those that were not at the request's replica
    seconds: float  # from the request's arrival
    error: str = ""
    way: str = ""  # of the blocks sent, as in `BlocksSent`


@dataclass(frozen=True, slots=True)
class ReplicaChanged(Event):
    """A replica of a fleet stopped taking prompts, or takes them again. `error`: why it ended."""

    replica: int
    state: str  # "ready", "draining", "stopped", "restarting" or "dead"
    error: str


Handler = Callable[[Event], None]


class Bus:
    """Handlers subscribe from any thread and run on the engine's. One that raises is logged and dropped."""

    def __init__(self) -> None:
        self.hides: Callable[[Event], bool] | None = None  # which events are dropped
        self._handlers: tuple[Handler, ...] = ()
        self._changing = threading.Lock()

    def subscribe(self, handler: Handler) -> Callable[[], None]:
        with self._changing:
            self._handlers = (*self._handlers, handler)
        return lambda: self._drop(handler)

    def emit(self, event: Event) -> None:
        if self.hides is not None and self.hides(event):
            return
        for handler in self._handlers:
            try:
                handler(event)
            except Exception:
                log.exception("a subscriber failed on %s and was dropped", event.kind)
                self._drop(handler)

    def _drop(self, handler: Handler) -> None:
        with self._changing:
            self._handlers = tuple(each for each in self._handlers if each is not handler)
