"""What the engine asks of whoever runs the model. No tensors: tests put other runners behind it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.events import TokenLogprob
from engine.scheduling.plan import Plan

BAD = -1  # in place of a token: the model gave no number to draw from


@dataclass(slots=True)
class Outcome:
    """What a step has brought: a token for each row that samples, in the plan's order."""

    tokens: list[int]
    logprobs: Mapping[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)  # by request
    seconds: float = 0.0  # from launch to the tokens' arrival
    swap_seconds: float = 0.0


class Runner(Protocol):
    def launch(self, plan: Plan) -> Any:
        """Starts a step and returns at once where the device works by itself."""

    def collect(self, handle: Any) -> Outcome:
        """Waits for a launched step. Steps are collected in the order they were launched."""

    def ailing(self) -> str | None:
        """None where the device still works; else what is wrong with it, for good."""

    def memory(self) -> dict[str, int]:
        """Bytes, by what they are for."""
