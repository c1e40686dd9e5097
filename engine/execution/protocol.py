"""The interface between the engine and the runner of the model. No tensors, so tests can use fakes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from engine.api.events import TokenLogprob
from engine.api.expert_load import ExpertLoad
from engine.api.snapshot import Load, SchemeView, StepSplit
from engine.api.speeds import Reads, Speeds
from engine.execution.changes import RunnerChange
from engine.kv.tiers.tier import TransferEnd, TransferOrder
from engine.scheduling.pace import SIZES
from engine.scheduling.step import Masks, Step


class Fit(NamedTuple):
    """What fits into the cache's memory under a scheme."""

    blocks: int
    host_blocks: int
    context: int  # maximum tokens of a request


class WeightsPlan(NamedTuple):
    """What a change of the weights from one scheme to another takes, and what it leaves for the cache."""

    old: str
    new: str
    parts: int  # to replace: the layers, and the head if its scheme changes, too; 0: it is the same scheme
    blocks: int | None = None  # how many will fit in the cache; None if their number is fixed


BAD = -1  # in place of a token: the model's logits were NaN


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The most likely next tokens of each row whose next token a beam search chooses."""

    places: Mapping[int, int]  # by request: its row in the arrays
    ids: np.ndarray  # [rows, most], most likely first
    values: np.ndarray  # [rows, most] float32: log-probabilities

    def of(self, request: int) -> tuple[np.ndarray, np.ndarray]:
        place = self.places[request]
        return self.ids[place], self.values[place]


class BlockScores(NamedTuple):
    """What a block that a row has filled adds to the scores of its request's blocks, with a budget."""

    request: int
    block: int  # its index among the request's blocks
    scores: np.ndarray  # of the blocks that the request holds, in order, up to this one


@dataclass(slots=True)
class StepResult:
    """The result of a step: a token for each row that samples, in the step's order; for a run, its first."""

    tokens: list[int]
    logprobs: Mapping[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)  # by request
    seconds: float = 0.0  # from launch until the tokens arrived
    top_tokens: TopTokens | None = None  # of requests with beams
    runs: Mapping[int, list[int]] = field(default_factory=dict)  # by request: the tokens of rows with drafts
    prompt_logprobs: Mapping[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)  # of the targets
    sums: Mapping[int, np.ndarray] = field(default_factory=dict)  # by request: the sum of its span, float32
    scores: Sequence[BlockScores] = ()
    compiled: bool = False  # kernels were compiled or a graph captured: `seconds` says nothing about others


# The numbers of tokens of graphs with pieces of prompts. Models have those up to 512, and small ones more.
PIECE_SIZES = tuple(size for size in SIZES if size <= 4096)


RARE = "counted", "biased"  # sampling with penalties and log-probabilities; with biases


class StepKind(NamedTuple):
    """What the kernels of a step depend on."""

    rows: int  # that decode one token
    prompt: int = 0  # tokens of a prompt beside them
    filtered: bool = False  # whether a row uses top-k or top-p
    long: bool = False  # whether attention splits a context, which matters in graphs
    pieces: bool = False  # whether the prompt is in a graph
    waits: bool = False  # whether its layers wait for blocks that arrive from host memory
    adapted: bool = False  # whether a row has an adapter, which matters in graphs
    sampling: str = ""  # one of RARE, to be compiled without a capture: rows need it rarely


class Compilation(Protocol):
    """Kernels that compile on other threads. A step that needs one waits for it."""

    def wait(self, seconds: float | None = None) -> bool:
        """Whether all are compiled, after at most `seconds`. Raises the error of one that failed."""


class ReadAdapter(Protocol):
    """An adapter that was read and checked."""

    @property
    def digest(self) -> bytes:
        """A hash of what it computes with."""

    @property
    def rank(self) -> int:
        """The largest of any module."""

    @property
    def nbytes(self) -> int: ...

    @property
    def operations(self) -> int:
        """Those of a token."""


class Runner(Protocol):
    graphs: bool | None  # whether steps are replayed from captured graphs; None: not supported

    @property
    def graph_sizes(self) -> Sequence[int]:
        """The batch sizes of captured graphs, in increasing order; none without graphs."""

    @property
    def piece_sizes(self) -> Sequence[int]:
        """The numbers of tokens of graphs with pieces of prompts, in increasing order."""

    def start_compiling(self, kinds: Sequence[StepKind]) -> Sequence[Compilation]:
        """Compile the kernels of such steps in parallel, without running them."""

    def capture(self, kinds: Sequence[StepKind]) -> None:
        """Capture the graphs of such steps without running them, where their kernels are compiled.

        There are none that wait if no step does.
        """

    def launch(self, step: Step) -> Any:
        """Launch a step. Returns at once if the device runs asynchronously.

        The step's changes to tables, sampling and tokens apply even if this raises.
        """

    def supply(self, handle: Any, masks: Masks) -> None:
        """Supply the masks of a step with guided rows, once, before any row is sampled. May raise."""

    def skip(self, step: Step) -> None:
        """Apply only the changes and block copies of a step that failed."""

    def apply(self, change: RunnerChange) -> None:
        """Apply a change between steps, with none in flight. Raises BadInput if it is not possible."""

    def read_adapter(self, folder: Path) -> ReadAdapter:
        """Read and check an adapter's files, from any thread, ahead of the change that loads it."""

    def transfer(self, order: TransferOrder) -> None:
        """Start a store or load, which runs concurrently with steps, after those launched so far.

        Never raises: failures are reported by `transferred`.
        """

    def transferred(self, *, wait: bool = False) -> Sequence[TransferEnd]:
        """Stores and loads that have ended since the last call. `wait`: wait for all of them."""

    def follow(self, transfer: int) -> bool:
        """Have the steps launched from now on wait on the device for the last blocks of a load.

        False: they may not be launched before it has ended.
        """

    def fit(self) -> Fit:
        """What fits in the cache under its current scheme."""

    def collect(self, handle: Any) -> StepResult:
        """Wait for a launched step. Steps are collected in launch order."""

    def enter_thread(self) -> None:
        """Call it first on a thread other than that which made the runner."""

    def device_error(self) -> str | None:
        """None if the device still works, else a description of its permanent failure."""

    def memory(self) -> dict[str, int]:
        """Bytes by purpose."""

    @property
    def weights_scheme(self) -> str:
        """The name of the weights' scheme; while they change, of the one before."""

    def weight_schemes(self) -> tuple[SchemeView, ...]:
        """All schemes for the weights, and for those not available, the reason."""

    def plan_weights(self, scheme: str) -> WeightsPlan | None:
        """Plan a change of the weights, which `apply` then makes part by part. None: they are fixed.

        Raises BadInput if this scheme is not possible; changes nothing.
        """

    def kv_schemes(self) -> tuple[SchemeView, ...]:
        """All schemes for the cache, and for those not available, the reason."""

    def load(self) -> Load | None:
        """How busy the device is; None if it cannot be measured. Never waits."""

    def experts(self) -> ExpertLoad | None:
        """How many tokens each expert got; None if there are none. Never waits: it may be a read behind."""

    def split(self) -> StepSplit | None:
        """Time by part of a step; None on a GPU, or if `speeds` was not called recently."""

    def reads(self) -> Reads:
        """What a step of the current model reads."""

    def speeds(self) -> Speeds:
        """Peak speeds of the device, measured on the first call, on the caller's thread.

        On a CPU, this also turns on `split` for some seconds.
        """
