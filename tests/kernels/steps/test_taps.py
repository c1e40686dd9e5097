"""What layers read, as the fused forward leaves it for heads that draft, in Triton's interpreter."""

from itertools import pairwise

import pytest
import torch

from tests.kernels.interpreted import Interpreted
from tests.kernels.steps.tapped import TAPS, taps_of

pytest.importorskip("triton", reason="no Triton here")


@pytest.mark.parametrize("rows", [1, 3])
def test_the_fused_forward_leaves_what_layers_read(kernels: Interpreted, rows: int) -> None:
    """In a step that is launched kernel by kernel, and in one of a graph, which is padded."""
    expected, launched, replayed = kernels.run(taps_of, rows)
    for each in TAPS:
        for found in (launched, replayed):
            torch.testing.assert_close(found[each], expected[each], atol=1e-5, rtol=1e-5)
    assert all((a - b).abs().max() > 0.1 for a, b in pairwise(expected.values())), "layers change nothing"
