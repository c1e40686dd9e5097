"""The part of a mixture of experts in Triton's interpreter: its launches against its forward."""

import pytest
import torch

from tests.cases import soak
from tests.kernels.experts import KINDS, both_ways
from tests.kernels.interpreted import Interpreted

pytest.importorskip("triton", reason="no Triton here")


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("MoE", 3),
        ("ScaledSharedMoE", 1),
        ("BiasedMoE", 3),
        ("ClampedMoE", 1),
        *soak(*((kind, rows) for kind in KINDS for rows in (1, 2, 40))),
    ],
)
def test_launches_compute_what_forward_does(kernels: Interpreted, kind: str, rows: int) -> None:
    found, expected = kernels.run(both_ways, kind, rows)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
