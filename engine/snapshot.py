"""The engine at one moment, between two steps. Immutable; made only when somebody asks."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


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
    host_blocks: tuple[int, ...]


class Switch(NamedTuple):
    """A technique that can be turned off and on while the engine runs."""

    name: str
    on: bool
    usual: bool  # how the engine was started


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


@dataclass(frozen=True, slots=True)
class Rates:
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
    rates: Rates
    step_times: StepTimes
    ttft: Quantiles
    itl: Quantiles
    finished: int
    memory: dict[str, int]  # bytes by purpose, at most a second old: weights, cache, device_free ...
    switches: tuple[Switch, ...] = ()
    reads: Reads = field(default_factory=Reads)
    kv_dtype: str = ""  # of the cache's keys and values
