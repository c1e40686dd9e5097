"""Drafts on a GPU, in Triton's interpreter: what heads read of a step, and a draft model's forwards."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.kernels.interpreted import Interpreted
from tests.kernels.steps.drafting import TAPS, drafts_of, taps_of

pytest.importorskip("triton", reason="no Triton here")


@pytest.mark.parametrize("rows", [1, 3])
def test_the_fused_forward_leaves_what_layers_read(kernels: Interpreted, rows: int) -> None:
    """In a step that is launched kernel by kernel, and in one of a graph, which is padded."""
    expected, launched, replayed = kernels.run(taps_of, rows)
    for each in TAPS:
        for found in (launched, replayed):
            torch.testing.assert_close(found[each], expected[each], atol=1e-5, rtol=1e-5)
    assert all((a - b).abs().max() > 0.1 for a, b in pairwise(expected.values())), "layers change nothing"


@pytest.mark.soak  # ten seconds
def test_a_draft_model_drafts_the_same_through_kernels(kernels: Interpreted, tmp_path: Path) -> None:
    """Each of its forwards reads the token that the kernel of the one before has sampled."""
    plain, replayed = kernels.run(drafts_of, tmp_path)
    assert replayed == plain
    assert len(plain[1]) >= 4 and all(len(drafts) == 3 for _, drafts in plain[1])
