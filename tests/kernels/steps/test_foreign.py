"""Steps of models that transformers runs, as a GPU runs them, and the trial of a capture."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import Tensor

from tests.kernels.foreign import steps, tried
from tests.kernels.interpreted import Interpreted

pytest.importorskip("triton", reason="no Triton here")


@pytest.mark.soak  # the interpreter's process loads transformers
@pytest.mark.parametrize(
    ("model", "name"), [("phi", "decodes"), ("phi", "prompts"), ("phi", "pieces"), ("gpt2", "decodes")]
)
def test_a_step_equals_the_plain_forward(kernels: Interpreted, model: str, name: str) -> None:
    found, expected = kernels.run(steps, name, model)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)


@pytest.mark.soak
def test_the_inputs_of_the_trial_are_two_tokens_of_each_row(kernels: Interpreted) -> None:
    problem, found, expected = kernels.run(tried, "phi")
    assert problem == ""
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)


class Step:
    """A step whose result depends on its input, and on the host's as far as the test says."""

    def __init__(self) -> None:
        self.given, self.calls = torch.zeros(2), 0

    def fill(self, turn: int) -> None:
        self.given.fill_(turn + 1)

    def one_by_one(self) -> tuple[Tensor, ...]:
        return (self.given * 3,)

    def captured(self) -> tuple[Tensor, ...]:
        return self.one_by_one()


class Baked(Step):
    """Replays give what the capture gave."""

    def captured(self) -> tuple[Tensor, ...]:
        self.calls += 1
        if self.calls <= 2:
            self.kept = self.one_by_one()
        return self.kept


class Failing(Step):
    def captured(self) -> tuple[Tensor, ...]:
        self.calls += 1
        if self.calls > 1:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        return self.one_by_one()


class Empty(Step):
    def captured(self) -> tuple[Tensor, ...]:
        return (torch.full((2,), torch.nan),)


@contextmanager
def waits() -> Iterator[None]:
    yield
    raise RuntimeError("called a synchronizing CUDA operation")


@pytest.mark.parametrize(
    ("kind", "unwaited", "problem"),
    [
        (Step, nullcontext, ""),
        (Baked, nullcontext, "the results of a captured step differ"),
        (Empty, nullcontext, "the results of a captured step differ"),
        (
            Failing,
            nullcontext,
            "a step cannot be captured (operation not permitted when stream is capturing)",
        ),
        (Step, waits, "a step cannot be captured (called a synchronizing CUDA operation)"),
    ],
)
def test_a_capture_is_compared_with_the_step(
    kind: Callable[[], Step], unwaited: Callable[[], Iterator[None]], problem: str
) -> None:
    from engine.execution.cuda.foreign import why_not_captured

    step = kind()
    found = why_not_captured(step.one_by_one, step.captured, step.fill, unwaited())  # type: ignore[arg-type]
    assert found == problem
