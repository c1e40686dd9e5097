"""The engine's state between two steps. Immutable, and made only on request."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

from engine.api.errors import ContextBound
from engine.api.expert_load import ExpertLoad
from engine.api.histogram import Counts
from engine.api.speculation import Speculation
from engine.api.speeds import Reads


class RequestView(NamedTuple):
    """A request, as the queues pane shows it."""

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
    host_blocks: tuple[int, ...]  # indices of its blocks in a tier below the device
    group: int = -1  # the request it helps to answer, if several rows do
    speculation: Speculation | None = None  # None: it never drafted
    gone: int = 0  # its blocks that have left the window or were evicted


class HypothesisView(NamedTuple):
    """A hypothesis of a beam search."""

    id: int  # the request that computes it; -1: it has ended
    parent: int  # its index among the previous step's live hypotheses; -1: it has ended
    score: float
    tokens: tuple[int, ...]  # after the tokens that are certain


class BeamsView(NamedTuple):
    """A beam search: live and finished hypotheses, best first, and those dropped in the last step."""

    request: int
    width: int
    certain: int  # tokens of the reply that all hypotheses share
    live: tuple[HypothesisView, ...]
    done: tuple[HypothesisView, ...]
    dropped: tuple[HypothesisView, ...]


class Switch(NamedTuple):
    """A technique that can be switched on and off at run time."""

    name: str
    on: bool
    usual: bool  # its value at start


class SchemeView(NamedTuple):
    """A scheme for the weights or the cache."""

    name: str
    why_not: str  # empty: it is available
    nbytes: int  # approximate bytes of all weights, or of a token in the cache; 0: not known
    blocks: int = 0  # size of the cache under it; 0: unchanged


class FormTime(NamedTuple):
    """The usual time of steps that only decode, without drafts, in one form: schemes of weights and cache."""

    weights: str
    cache: str
    rows: int  # the fewest of such steps
    most: int  # the most rows; 0: no limit
    seconds: float  # the lower quartile of the newest steps
    steps: int  # how many it is of


class Change(NamedTuple):
    """A change of the weights' scheme, in progress or failed."""

    scheme: str  # the new scheme
    done: int = 0  # layers converted; decreases when a change is rolled back
    total: int = 0
    error: str = ""  # why the old scheme is kept or being restored
    over: bool = False


class Load(NamedTuple):
    """How busy the device is, as reported by its driver: means over about a second."""

    busy: float  # share of the time in which any kernel ran
    watts: float
    limit: float  # power limit in watts


_nothing = partial(np.zeros, 0, np.int32)
HOST = "host"  # the tier of host memory, which a snapshot has fields of its own for
EXCHANGE = "exchange"  # the tier of memory through which the engines of a fleet send blocks
ENDED = ("stopped", "restarting", "dead")  # states without a process
GPU = "gpu"  # as the way of these blocks: from GPU to GPU; the other way is HOST


def stored_in(rank: int) -> int:
    """The value in `BlockView.moved` of blocks copied to a tier; host memory has rank 0, the next one 1."""
    return 2 * rank + 1


def loaded_from(rank: int) -> int:
    return 2 * rank + 2


def moved_where(value: int, tiers: Sequence[str]) -> str:
    """A nonzero value of `BlockView.moved` in words."""
    rank, loaded = divmod(value - 1, 2)
    return f"{'from' if loaded else 'to'} {tiers[rank]}"


@dataclass(frozen=True, slots=True)
class BlockView:
    """All blocks, as columns."""

    size: int
    refs: np.ndarray  # number of holders; 0: free or cached
    owner: np.ndarray  # the request that took it; -1: free
    filled: np.ndarray  # number of tokens in it
    used_at: np.ndarray  # the step in which it was last shared or released
    in_use: int
    cached: int
    evictions: int
    place: np.ndarray = field(default_factory=_nothing)  # its index among its request's blocks
    left: np.ndarray = field(default_factory=_nothing)  # whether a request dropped it and none took it since
    moved: np.ndarray = field(default_factory=_nothing)  # the latest `stored_in` or `loaded_from`; or 0

    def emptied(self) -> Self:
        """A copy with all blocks free."""
        names = ("refs", "filled", "left", "moved")
        zeros: dict[str, Any] = {name: np.zeros_like(getattr(self, name)) for name in names}
        return replace(self, owner=np.full_like(self.owner, -1), in_use=0, cached=0, **zeros)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles in seconds over the newest samples; zero if there are none."""

    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    count: int = 0


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds per step by phase: means over the steps of the last second in which some ended."""

    plan: float = 0.0
    launch: float = 0.0
    wait: float = 0.0  # for the device
    commit: float = 0.0

    @property
    def total(self) -> float:
        return self.plan + self.launch + self.wait + self.commit


class TierView(NamedTuple):
    """A cache tier, such as a disk, in blocks."""

    name: str
    in_use: int
    size: int
    problem: str = ""  # why nothing is stored there now


class AdapterView(NamedTuple):
    """A loaded LoRA adapter."""

    name: str
    rank: int  # the largest of any module
    nbytes: int
    source: str  # the name of its folder
    requests: int = 0  # that use it


class StepSplit(NamedTuple):
    """Seconds per step of a CPU's work, as running means over the steps that were measured."""

    attention: float
    products: float
    sampling: float
    launch: float = 0.0  # all work of a launch: these parts, and norms, rotations and bookkeeping


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rates over about the last second."""

    prefill: float = 0.0  # tokens of prompts per second
    decode: float = 0.0  # tokens of replies per second, without rejected drafts
    steps: float = 0.0  # per second
    batch: float = 0.0  # rows per step
    step_tokens: float = 0.0  # tokens that a step computes, rejected drafts too
    # By window, 0 for none: the tokens of context that a step reads for its rows, and the pairs of a token
    # that it computes and one that this sees.
    contexts: tuple[tuple[int, float], ...] = ()
    pairs: tuple[tuple[int, float], ...] = ()
    adapters: float = 0.0  # bytes of LoRA adapters that a step reads
    adapted: float = 0.0  # operations of a step's tokens with them


@dataclass(frozen=True, slots=True)
class RankView:
    """One of the processes that share a model."""

    rank: int
    device: str
    pid: int
    cache: int  # bytes of its share of the cache
    joining: float = 0.0  # share of the time that it adds and gathers, which includes waiting for the others
    stage: int | None = None  # of a pipeline, from 0; None: there is none
    bubble: float = 0.0  # share of the time with steps in flight in which its stage had nothing to do
    traffic: float = 0.0  # bytes that it sends to the others per second with steps in flight
    load: Load | None = None  # of its GPU; None: not measured
    weights: int = 0  # bytes of its share of the weights


class ReplicaView(NamedTuple):
    """A replica of a fleet. Its blocks follow those of the replicas before it."""

    number: int
    state: str  # "ready", "draining", "stopped", "restarting", "dead" or "no answer"
    error: str
    device: str
    running: int
    waiting: int
    blocks: int
    in_use: int
    cached: int
    queue: int = 0  # prompt tokens to compute before a new prompt starts

    @property
    def runs(self) -> bool:
        """Whether it has a process, which has memory and may run steps."""
        return self.state not in ENDED


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of an engine. Nothing in it changes after it is made."""

    at: float
    step: int
    state: str  # "ready", "dead", "restarting" or "stopped"; of a fleet also "draining"
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
    host_in_use: int  # blocks
    host_size: int
    requests: tuple[RequestView, ...]  # running ones first, then the front of the queue
    waiting: int
    running: int
    preemptions: int
    prefix_hit_rate: float  # share of `prompt_tokens` found in the cache
    rates: Throughput
    step_times: StepTimes
    ttft: Quantiles
    itl: Quantiles
    finished: int
    memory: dict[str, int]  # bytes by purpose, at most a second old: weights, cache, device_free ...
    switches: tuple[Switch, ...] = ()
    reads: Reads = field(default_factory=Reads)
    pace: float = 0.0  # steps per second, of the steps of `step_times`; of a fleet, all replicas'
    kv_dtype: str = ""  # of the cache's keys and values
    schemes: tuple[SchemeView, ...] = ()
    change: Change | None = None  # of the weights' scheme; None: none in progress, and the last one succeeded
    beams: tuple[BeamsView, ...] = ()
    speculation: Speculation = field(default_factory=Speculation)  # of all requests so far
    speculates: tuple[str, ...] = ()  # the available kinds
    kv_scheme: str = "none"  # of the cache
    kv_schemes: tuple[SchemeView, ...] = ()
    load: Load | None = None  # of a GPU; None: not measured
    split: StepSplit | None = None  # of a CPU, for a while after `MeasureSpeeds`
    tiers: tuple[TierView, ...] = ()  # below host memory
    warmed: float = 1.0  # share of the warm-up that is done
    loading: int = 0  # requests whose blocks are loading from a tier; neither waiting nor running
    iteration_tokens: Counts = field(default_factory=Counts)  # tokens of each step so far
    adapters: tuple[AdapterView, ...] = ()  # loaded LoRA adapters
    ranks: tuple[RankView, ...] = ()  # that share the model; none if it is not shared
    latency_target: float | None = None  # of the policy latency, in seconds; None: another policy
    max_slowdown: float | None = None  # of a step by prompts beside its decodes; None: any
    prompt_limit: int = 0  # the prompt tokens of a step that `max_slowdown` allows; 0: as many as there are
    replicas: tuple[ReplicaView, ...] = ()  # of a fleet; none if this is one engine
    form_times: tuple[FormTime, ...] = ()  # of all forms so far; the one of the newest step is first
    experts: ExpertLoad | None = None  # tokens by expert; None: the model has none
    block_groups: int = 1  # of layers: each has its own blocks of the same `block_size` tokens
    context_bound: ContextBound = "model"  # what limits `max_context`
    vocab: int = 0  # tokens of the model
    prompt_tokens: int = 0  # of all requests admitted so far

    def tokens_in(self, blocks: int) -> int:
        """The tokens of so many blocks; with windows, more fit."""
        return blocks // self.block_groups * self.block_size

    @property
    def runs(self) -> bool:
        """Whether there is an engine; of a fleet, at least one."""
        return self.state not in ENDED

    @property
    def running_replicas(self) -> int:
        """0 without a fleet."""
        return sum(each.runs for each in self.replicas)

    @property
    def ranks_each(self) -> int:
        """How many ranks share the model, in each replica of a fleet; 0: it is not shared."""
        return len(self.ranks) // max(1, len(self.replicas))

    @property
    def usable_blocks(self) -> int:
        """Those of `blocks` that can be taken: not those of a replica that does not run."""
        return sum(each.blocks for each in self.replicas if each.runs) or len(self.blocks.refs)

    @property
    def queued(self) -> int:
        """Requests that do not run: they wait, or their blocks are loading."""
        return self.waiting + self.loading

    @property
    def on_cpu(self) -> bool:
        return (self.replicas[0].device if self.replicas else self.device) == "cpu"

    @property
    def bubbles(self) -> tuple[float, ...]:
        """Of each stage of a pipeline: its idle share of the time with steps in flight. Else none."""
        stages: dict[int, list[float]] = {}
        for each in self.ranks:
            if each.stage is not None:
                stages.setdefault(each.stage, []).append(each.bubble)
        return tuple(sum(found) / len(found) for _, found in sorted(stages.items()))

    @property
    def joining(self) -> float:
        """The mean share of the time that the ranks add and gather."""
        return sum(each.joining for each in self.ranks) / len(self.ranks) if self.ranks else 0.0

    @property
    def traffic(self) -> float:
        """The mean of the bytes that a rank sends to the others per second."""
        return sum(each.traffic for each in self.ranks) / len(self.ranks) if self.ranks else 0.0

    def form_time(self, weights: str, cache: str) -> FormTime | None:
        """How long a step takes in this form, with about as many rows as the newest one had."""
        wanted = weights, cache, self.form_times[0].rows if self.form_times else 0
        return next((each for each in self.form_times if each[:3] == wanted), None)

    @property
    def tier_names(self) -> tuple[str, ...]:
        """The tiers that values of `BlockView.moved` refer to."""
        return (HOST, *(tier.name for tier in self.tiers))

    def ended(self, why: str) -> Self:
        """A copy without requests or blocks: the last known state of an engine that no longer responds."""
        return replace(
            self,
            state="dead",
            error=why,
            blocks=self.blocks.emptied(),
            host_in_use=0,
            host_size=0,
            tiers=(),
            requests=(),
            waiting=0,
            running=0,
            loading=0,
            rates=Throughput(),
            step_times=StepTimes(),
            ttft=Quantiles(),
            itl=Quantiles(),
            form_times=(),
            memory={},
            change=None,
            beams=(),
            load=None,
            split=None,
        )
