"""Third-party schemes: the reason why one cannot be used is reported wherever schemes are listed."""

from importlib.metadata import EntryPoint

import pytest
import torch

from engine.api.errors import BadInput, EngineError
from engine.quant import registry
from engine.quant.int8 import Int8
from engine.quant.linear import Linear

CPU = torch.device("cpu")


class IncompleteScheme:
    """A scheme that lacks most of the interface."""

    name = "half"

    def make(self) -> None: ...


class Other(Int8):
    pass


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("half", "its class lacks kernels, rounds_activations, graphs, why_not, nbytes"),
        ("other", "its package registers another name than 'other'"),
        ("gone", "it cannot be imported"),
    ],
)
def test_a_scheme_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, name: str, problem: str) -> None:
    classes = {"half": "IncompleteScheme", "other": "Other", "gone": "Gone"}
    points = [EntryPoint(each, f"{__name__}:{of}", registry.GROUP) for each, of in classes.items()]
    monkeypatch.setattr(
        registry,
        "entry_points",
        lambda group, name=None: [each for each in points if name in (None, each.name)],
    )
    assert name in registry.names()
    assert registry.why_not(name, CPU, torch.float32).startswith(problem)
    with pytest.raises(BadInput, match=f"quantization '{name}': {problem}"):
        registry.named(name)


class Broken(Int8):
    """A scheme with a defect."""

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.nn.Module:
        raise ValueError("no such weight")


def test_a_defect_of_a_scheme_names_it_and_its_line() -> None:
    weight = torch.nn.Parameter(torch.zeros(2, 2), requires_grad=False)
    why = r"^quantization 'int8' failed: ValueError: no such weight \(test_registry.py:\d+, in make\)$"
    with pytest.raises(EngineError, match=why):
        Linear(weight).finalized(Broken())
