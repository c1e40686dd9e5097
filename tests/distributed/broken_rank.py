"""A rank with defects: it fails twice, and later samples another token than rank 0."""

from collections.abc import Callable
from itertools import count
from typing import Any

from engine.distributed import loop, rank
from engine.execution.protocol import StepResult
from engine.execution.runner import ModelRunner

BEFORE, AFTER, DIFFERS = 4, 8, 60  # the calls at which it fails before the sums, after them, or differs


def failing(method: Callable[..., Any], at: int) -> Callable[..., Any]:
    calls = count()

    def call(*given: Any) -> Any:
        if next(calls) == at:
            raise RuntimeError(f"call {at} of {method.__name__} is broken")
        return method(*given)

    return call


def differing(method: Callable[[StepResult], int]) -> Callable[[StepResult], int]:
    calls = count()
    return lambda result: method(result) + (next(calls) >= DIFFERS)


if __name__ == "__main__":
    ModelRunner.compute = failing(ModelRunner.compute, BEFORE)  # type: ignore[method-assign]
    ModelRunner.sample = failing(ModelRunner.sample, AFTER)  # type: ignore[method-assign]
    loop.digest = differing(loop.digest)
    rank.main()
