"""The engine at one moment, between two steps. Immutable; made only when somebody asks."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import numpy as np


class Speculation(NamedTuple):
    """What drafting has brought a request so far, or the engine."""

    kind: str = ""
    on: bool = True  # False: it lost, and rests
    verifications: int = 0
    drafted: int = 0  # tokens
    accepted: int = 0  # tokens of them
    gain: float = 0.0  # how many times as fast as without; 0: not known yet

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_a_step(self) -> float:
        """Of the steps that verified drafts."""
        return 1 + self.accepted / self.verifications if self.verifications else 1.0


class RequestView(NamedTuple):
    """One request, as the queues pane shows it."""

    id: int
    phase: str
    why: str
    prompt: int
    generated: int
    launched: int
    max_len: int
    cached_tokens: int
    priority: int
    preemptions: int
    blocks: tuple[int, ...]
    host_blocks: tuple[int, ...]  # those that lie in a tier below the device, by their place in the request
    group: int = -1  # the request that it helps to answer, where several do
    speculation: Speculation | None = None  # None: it never drafted
    gone: int = 0  # blocks of it that have left its window


class HypothesisView(NamedTuple):
    """One text that a beam search looks at."""

    id: int  # the request that computes it; -1: it has ended
    parent: int  # its place among the live ones a step ago; -1: it has ended
    score: float
    tokens: tuple[int, ...]  # behind those that are certain


class BeamsView(NamedTuple):
    """A beam search: the live hypotheses and those done, the best first, and what the last step dropped."""

    request: int
    width: int
    certain: int  # tokens of the reply that all of them share
    live: tuple[HypothesisView, ...]
    done: tuple[HypothesisView, ...]
    dropped: tuple[HypothesisView, ...]


class Switch(NamedTuple):
    """A technique that can be turned off and on while the engine runs."""

    name: str
    on: bool
    usual: bool  # how the engine was started


class SchemeView(NamedTuple):
    """A way to keep the weights, or the cache."""

    name: str
    why_not: str  # empty: it can be taken
    nbytes: int  # of all weights, nearly, or of a token in the cache; 0 where that is not known
    blocks: int = 0  # that the cache would have then; 0: as many as it has now


class Change(NamedTuple):
    """Of the scheme of the weights, while it goes on or after it has failed."""

    scheme: str  # that is wanted
    done: int = 0  # layers; they grow fewer on the way back
    total: int = 0
    error: str = ""  # why the old scheme stands, or will stand again
    over: bool = False


class Reads(NamedTuple):
    """What a step reads from the device's memory: the weights once, and the cache of each of its rows."""

    weights: int = 0  # bytes
    cache: tuple[tuple[int, int], ...] = ()  # (window in tokens, 0: all of them; bytes a token)

    def of_context(self, tokens: int) -> int:
        """Bytes that one row with so many tokens behind it reads of the cache."""
        return sum(each * (min(tokens, window) if window else tokens) for window, each in self.cache)


class Speeds(NamedTuple):
    """What a device can do at best, as measured on it."""

    read: float  # bytes a second
    multiply: float  # floating point operations a second, in the dtype of the weights


class Load(NamedTuple):
    """How hard the device works, as its driver says: means over about a second."""

    busy: float  # share of the time in which anything ran
    watts: float
    limit: float  # watts that it may draw


def _nothing() -> np.ndarray:
    return np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class BlockView:
    """Every block, as columns."""

    size: int
    refs: np.ndarray  # 0: free or cached
    owner: np.ndarray  # the request that took it; -1: free
    filled: np.ndarray  # tokens in it
    used_at: np.ndarray  # the step when it was last shared or given back
    in_use: int
    cached: int
    evictions: int
    place: np.ndarray = field(default_factory=_nothing)  # which of its request's blocks it is, from 0
    left: np.ndarray = field(default_factory=_nothing)  # whether it left a window, and nobody took it since

    def emptied(self) -> Self:
        """The same blocks, all of them free."""
        return replace(
            self,
            refs=np.zeros_like(self.refs),
            owner=np.full_like(self.owner, -1),
            filled=np.zeros_like(self.filled),
            in_use=0,
            cached=0,
            left=np.zeros_like(self.left),
        )


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds, over the newest samples; zero where there are none."""

    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    count: int = 0


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Where a step's time went, in seconds, as running means."""

    plan: float = 0.0
    launch: float = 0.0
    wait: float = 0.0  # for the device
    commit: float = 0.0

    @property
    def total(self) -> float:
        return self.plan + self.launch + self.wait + self.commit


class StepSplit(NamedTuple):
    """What a launch on a CPU computes: seconds a step, running means. The rest of it is smaller work."""

    attention: float
    products: float
    sampling: float


@dataclass(frozen=True, slots=True)
class Throughput:
    """Over the last second or so."""

    prefill: float = 0.0  # tokens a second
    decode: float = 0.0  # tokens a second
    steps: float = 0.0  # a second
    batch: float = 0.0  # rows a step
    step_tokens: float = 0.0  # tokens a step


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Nothing in it changes once it is made."""

    at: float
    step: int
    state: str  # ready, or dead
    error: str
    model: str
    dtype: str
    device: str
    attention: str
    policy: str
    quantization: str
    depth: int
    block_size: int
    max_context: int
    blocks: BlockView
    host_in_use: int
    host_size: int
    requests: tuple[RequestView, ...]  # running first, then the head of the line
    waiting: int
    running: int
    preemptions: int
    prefix_hit_rate: float  # share of admitted prompt tokens found in the cache
    rates: Throughput
    step_times: StepTimes
    ttft: Quantiles
    itl: Quantiles
    finished: int
    memory: dict[str, int]  # bytes by purpose, at most a second old: weights, cache, device_free ...
    switches: tuple[Switch, ...] = ()
    reads: Reads = field(default_factory=Reads)
    kv_dtype: str = ""  # of the cache's keys and values
    schemes: tuple[SchemeView, ...] = ()
    change: Change | None = None  # of the weights' scheme; None: the last one went well
    beams: tuple[BeamsView, ...] = ()
    speculation: Speculation = field(default_factory=Speculation)  # of all requests so far
    speculates: tuple[str, ...] = ()  # the kinds that can be had
    kv_scheme: str = "none"  # in which the cache keeps keys and values
    kv_schemes: tuple[SchemeView, ...] = ()
    load: Load | None = None  # of a GPU; None: nobody says it
    split: StepSplit | None = None  # of a CPU, for a while after `MeasureSpeeds`

    def ended(self, why: str) -> Self:
        """The same engine with nothing in it: the last that is known of one that answers no more."""
        return replace(
            self,
            state="dead",
            error=why,
            blocks=self.blocks.emptied(),
            host_in_use=0,
            requests=(),
            waiting=0,
            running=0,
            rates=Throughput(),
            step_times=StepTimes(),
            ttft=Quantiles(),
            itl=Quantiles(),
            memory={},
            change=None,
            beams=(),
            load=None,
            split=None,
        )
