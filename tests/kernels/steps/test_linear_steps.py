"""Whole steps of models with parts of many kinds, in Triton's interpreter, against their plain forward."""

import pytest
import torch

from tests.kernels.hybrids import MODELS, STEPS, steps
from tests.kernels.interpreted import Interpreted

pytest.importorskip("triton", reason="no Triton here")


# Steps of each model; what all models of a kind compute alike is in one of them. The others are soak tests.
QUICK = {
    "dense": ("drafts",), "experts": ("one",), "mamba": (),
    "lone": (), "lone-experts": (), "states": (), "scaled": ("one",), "scaled-experts": (),
    "biased": (), "normed-terms": ("decodes",), "gelu": (), "clamped": (),
    "latents": ("one",), "latents-of-queries": (),
    "convolutions": ("drafts",), "beside": ("decodes",),
}  # fmt: skip
CASES = [
    pytest.param(family, name, marks=() if name in QUICK[family] else pytest.mark.soak)
    for family in MODELS
    for name in STEPS
]


@pytest.mark.parametrize(("family", "name"), CASES)
def test_a_step_equals_the_plain_forward(kernels: Interpreted, family: str, name: str) -> None:
    found, expected, mine, theirs = kernels.run(steps, name, family)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)
    for ours, plain in zip(mine, theirs, strict=True):
        torch.testing.assert_close(ours, plain, atol=2e-4, rtol=1e-3)
