"""The kernels of steps with adapters, compiled without a GPU."""

import pytest

from engine.api.config import DecoderConfig
from tests.cases import soak
from tests.kernels.steps import test_compiles as steps
from tests.kernels.steps.test_compiles import BESIDE, HYBRID, LARGE, NARROW, SLOPED, SMALL, SPACES, decode

compiled = steps.compiled


@pytest.mark.parametrize(
    ("compiled", "config", "rows", "scheme", "rank"),
    [
        (90, SMALL, 8, "none", 16),  # test_compiles.py has its other kernels
        *soak(
            (90, LARGE, 8, "none", 16), (90, LARGE, 1, "none", 8), (90, LARGE, 32, "none", 64),
            (90, SMALL, 128, "none", 256), (90, LARGE, 8, "int4", 16), (90, LARGE, 8, "fp8", 16),
            (90, HYBRID, 8, "none", 16), (90, SPACES, 8, "none", 16),
            (90, SLOPED, 8, "none", 16), (90, BESIDE, 8, "none", 16), (90, NARROW, 8, "none", 16),
            (80, SMALL, 8, "none", 64), (100, SMALL, 40, "none", 16), (120, SMALL, 128, "none", 64),
        ),
    ],
    indirect=["compiled"],
)  # fmt: skip
def test_steps_with_adapters(
    compiled: dict[str, int], config: DecoderConfig, rows: int, scheme: str, rank: int
) -> None:
    decode(config, rows, scheme, "none", rank)
    assert {"_shrink", "_skinny_gemm_shrink", "_gemm_with_terms"} & compiled.keys()
    assert "_gemm_with_terms" in compiled or (config, scheme) != (LARGE, "none") or rank > 32
    assert "_expand" in compiled or (rows <= 32 and rank <= 32), "else the readers of products add to them"
