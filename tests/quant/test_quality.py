"""What a scheme costs on a real trained model: the built-in one."""

from functools import cache

import pytest

from engine.models.find import find_model
from engine.models.registry import load_model
from tests.quant.perplexity import perplexity
from tests.quant.test_schemes import skip_without_bitsandbytes

# The share by which the perplexity of its answers may move. docs/quantization.md has what was measured.
BOUNDS = {
    "int8": 0.001,
    "bnb-int8": 0.005,
    "int4-32": 0.015,
    "int4": 0.015,
    "int4-128": 0.015,
    "bnb-nf4": 0.015,
}


@cache
def of(scheme: str) -> float:
    model, _ = load_model(find_model("pocket"), quantization=scheme)
    return perplexity(model)


@pytest.mark.parametrize("scheme", BOUNDS)
def test_perplexity_stays_within_its_bound(scheme: str) -> None:
    if scheme.startswith("bnb"):
        skip_without_bitsandbytes()
    assert 1.001 < of("none") < 1.05, (
        "the text says nothing of a model that is sure of all of it, or of nothing"
    )
    assert of(scheme) == pytest.approx(of("none"), rel=BOUNDS[scheme])
