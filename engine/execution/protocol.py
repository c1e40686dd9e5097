"""What the engine asks of the part that runs the model. No tensors: tests put other runners behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from engine.api.events import TokenLogprob
from engine.api.snapshot import Load, Reads, SchemeView, Speeds, StepSplit
from engine.execution.changes import Change
from engine.kv.tiers.tier import TransferEnd, TransferOrder
from engine.scheduling.step import Masks, Step


class Fit(NamedTuple):
    """What the memory that is the cache's holds in one of its forms."""

    blocks: int
    host_blocks: int
    context: int  # tokens that one request may have


BAD = -1  # in place of a token: the model gave no number to draw from


@dataclass(frozen=True, slots=True)
class Likeliest:
    """The best next tokens of each row for which somebody else decides which of them to take."""

    places: Mapping[int, int]  # by request, its row in the arrays
    ids: np.ndarray  # [rows, most], the likeliest first
    values: np.ndarray  # [rows, most] float32: log-probabilities

    def of(self, request: int) -> tuple[np.ndarray, np.ndarray]:
        place = self.places[request]
        return self.ids[place], self.values[place]


@dataclass(slots=True)
class StepResult:
    """What a step has brought: a token for each row that samples, in the step's order; a run's first."""

    tokens: list[int]
    logprobs: Mapping[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)  # by request
    seconds: float = 0.0  # from launch to the tokens' arrival
    likeliest: Likeliest | None = None  # of requests whose parameters ask for beams
    runs: Mapping[int, list[int]] = field(default_factory=dict)  # by request: what rows with drafts brought


class Runner(Protocol):
    graphs: bool | None  # whether steps are replayed from recorded graphs; None: they cannot be here

    def launch(self, step: Step) -> Any:
        """Starts a step and returns at once where the device works by itself.

        Its changes of tables, sampling and tokens hold even if it raises.
        """

    def supply(self, handle: Any, masks: Masks) -> None:
        """For a step with guided rows, once: it samples no row before. Raises as `launch` does."""

    def skip(self, step: Step) -> None:
        """Its changes and its block moves, and nothing else: what holds of a step that failed."""

    def apply(self, change: Change) -> None:
        """Between two steps, when none is under way. Raises BadInput where it cannot be."""

    def transfer(self, order: TransferOrder) -> None:
        """A store or a load goes on beside the steps, behind those launched so far.

        It never raises: what fails is told at its end.
        """

    def transferred(self, *, wait: bool = False) -> Sequence[TransferEnd]:
        """Stores and loads that are over since this was last asked. `wait`: all, once they are."""

    def fit(self) -> Fit:
        """What the cache holds in its present form."""

    def collect(self, handle: Any) -> StepResult:
        """Waits for a launched step. Steps are collected in the order they were launched."""

    def ailing(self) -> str | None:
        """None where the device still works; else what is wrong with it, for good."""

    def memory(self) -> dict[str, int]:
        """Bytes, by what they are for."""

    def weight_schemes(self) -> tuple[SchemeView, ...]:
        """The schemes that the weights could have, and of those that they cannot, why."""

    def blocks_with(self, more: int) -> int | None:
        """How many blocks fit if the cache has so many bytes more; None: their number is settled."""

    def kv_schemes(self) -> tuple[SchemeView, ...]:
        """The forms that the cache could have, and of those that it cannot, why."""

    def load(self) -> Load | None:
        """How hard the device works; None where nobody says it. Never waits."""

    def split(self) -> StepSplit | None:
        """What launches compute; None where nobody has asked for `speeds` of late, and on a GPU."""

    def reads(self) -> Reads:
        """What a step of the present model reads."""

    def speeds(self) -> Speeds:
        """What the device can do: measured when first asked, on the caller's thread, in a moment.

        For some seconds `split` says more of a CPU's steps then.
        """
