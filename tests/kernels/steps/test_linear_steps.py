"""Whole steps of models with linear attention, in Triton's interpreter, against their plain forward."""

import pytest
import torch

from tests.kernels.hybrids import MODELS, STEPS, steps
from tests.kernels.interpreted import Interpreted

pytest.importorskip("triton", reason="no Triton here")


# Steps of each model; those that all models of a kind compute alike are in one of them.
SOME = {
    "mamba": ("prompts", "drafts"),
    "lone-experts": ("decodes", "one"),
    "states": ("prompts", "decodes"),
    "scaled": ("decodes", "one"),
    "scaled-experts": ("decodes", "one"),
    "biased": ("decodes",),
}
CASES = [(family, name) for family in MODELS for name in SOME.get(family, STEPS)]


@pytest.mark.parametrize(("family", "name"), CASES)
def test_a_step_equals_the_plain_forward(kernels: Interpreted, family: str, name: str) -> None:
    found, expected, mine, theirs = kernels.run(steps, name, family)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)
    for ours, plain in zip(mine, theirs, strict=True):
        torch.testing.assert_close(ours, plain, atol=2e-4, rtol=1e-3)
