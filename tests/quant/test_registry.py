"""Third-party schemes: the reason why one cannot be used is reported wherever schemes are listed."""

from importlib.metadata import EntryPoint

import pytest
import torch

from engine.api.errors import BadInput
from engine.quant import registry
from engine.quant.int8 import Int8

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
