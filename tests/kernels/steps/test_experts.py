"""The part of a mixture of experts in Triton's interpreter: its launches against its forward."""

import pytest
import torch

from tests.cases import case, soak
from tests.kernels.experts import KINDS, both_ways
from tests.kernels.interpreted import Interpreted

pytest.importorskip("triton", reason="no Triton here")


@pytest.mark.parametrize(
    ("kind", "rows", "scheme"),
    [
        ("MoE", 3, "none"), ("ScaledSharedMoE", 1, "none"), ("BiasedMoE", 3, "int8"),
        ("UngatedMoE", 1, "none"), ("UngatedMoE", 3, "int4"),
        ("ClampedMoE", 1, "int4"), ("ClampedMoE", 3, "mxfp4"),
        *soak(*((kind, rows, "none") for kind in KINDS for rows in (1, 2, 40))),
        *soak(*(("UngatedMoE", rows, each) for each in ("int8", "int4") for rows in (1, 40))),
        *soak(
            *(("ClampedMoE", rows, each) for each in ("int8", "fp8", "int4", "mxfp4") for rows in (1, 40))
        ),
    ],
)  # fmt: skip
def test_launches_compute_what_forward_does(kernels: Interpreted, kind: str, rows: int, scheme: str) -> None:
    found, expected = kernels.run(both_ways, kind, rows, scheme)
    close = 6e-2 if scheme == "fp8" else 2e-2  # activations that differ by a bit may be rounded differently
    torch.testing.assert_close(found, expected, rtol=close, atol=close)


@pytest.mark.cuda
@pytest.mark.parametrize("scheme", ["none", "int8", "fp8", "int4", "mxfp4"])
@pytest.mark.parametrize("rows", [1, 2, 40, 300])
def test_on_a_gpu(rows: int, scheme: str) -> None:
    kinds = ["BiasedMoE", "WeighedInputMoE", "UngatedMoE", "ClampedMoE"]
    if scheme == "fp8":  # squares of activations that differ by a bit
        kinds.remove("UngatedMoE")
    for kind in kinds if scheme != "mxfp4" else ("ClampedMoE",):
        with case(kind):
            found, expected = both_ways(kind, rows, scheme, "cuda")
            if scheme == "fp8":  # a few numbers more differ by a step of their rounding
                assert (found - expected).norm() < 0.02 * expected.norm()
            else:
                torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
