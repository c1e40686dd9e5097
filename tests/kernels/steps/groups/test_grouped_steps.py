"""Whole steps of a model whose layers have blocks in two groups, in Triton's interpreter."""

import pytest
import torch

from tests.cases import soak
from tests.kernels.interpreted import Interpreted
from tests.kernels.steps.groups.grouped import steps

pytest.importorskip("triton", reason="no Triton here")


@pytest.mark.parametrize(
    ("name", "family", "scheme"),
    [
        ("decodes", "chained", "none"),
        *soak(
            ("prompts", "chained", "none"), ("decodes", "chained", "int4"), ("prompts", "plain", "none"),
            ("decodes", "plain", "none"), ("pieces", "chained", "none"),
            ("drafts", "chained", "none"), ("one", "chained", "none"), ("prompts", "chained", "int8"),
            ("prompts", "chained", "int4"), ("pieces", "chained", "int4"),
        ),
    ],
)  # fmt: skip
def test_a_step_equals_that_over_blocks_of_all_layers(
    kernels: Interpreted, name: str, family: str, scheme: str
) -> None:
    """Blocks that have left the window hold garbage."""
    found, expected, mine, theirs = kernels.run(steps, name, family, scheme)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)
    for ours, plain in zip(mine, theirs, strict=True):
        torch.testing.assert_close(ours.float(), plain.float(), atol=2e-4, rtol=1e-3)
