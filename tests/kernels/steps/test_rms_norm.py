"""RMS norm through layer norm: against the plain one, against float64, and with other rows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.kernels.cpu.rms_norm import CpuRmsNorm
from engine.models.layers.norm import Norm

EPS = 1e-5
DTYPES = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def norms(*shape: int, dtype: torch.dtype) -> tuple[Norm, CpuRmsNorm]:
    plain = Norm(*shape, eps=EPS, dtype=dtype)
    plain.weight.normal_(1, 0.3, generator=torch.Generator().manual_seed(2))
    return plain, CpuRmsNorm(plain.weight, EPS)


@given(
    shape=st.sampled_from([(8,), (64,), (172,), (1024,), (6, 16), (20, 64)]),
    dtype=st.sampled_from(list(DTYPES)),
    rows=st.integers(1, 20),
    size=st.sampled_from([1e-4, 1.0, 300.0]),
    shift=st.sampled_from([0.0, 5.0]),
    seed=st.integers(0, 99),
)
def test_equals_the_plain_norm(
    shape: tuple[int, ...], dtype: torch.dtype, rows: int, size: float, shift: float, seed: int
) -> None:
    plain, mirrored = norms(*shape, dtype=dtype)
    x = torch.randn(rows, *shape, generator=torch.Generator().manual_seed(seed))
    x = ((x + shift) * size).to(dtype)
    with torch.inference_mode():
        got, expected = mirrored(x), plain(x)
    wide = x.double()
    exact = wide * (wide.square().mean(-1, keepdim=True) + EPS).rsqrt() * plain.weight.double()
    for each in (got, expected):
        assert each.dtype is dtype
        torch.testing.assert_close(each.double(), exact, rtol=DTYPES[dtype], atol=DTYPES[dtype])


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("shape", [(64,), (172,), (1024,), (6, 16)])
def test_other_rows_change_no_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    _, mirrored = norms(*shape, dtype=dtype)
    x = torch.randn(200, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.inference_mode():
        whole = mirrored(x)
        for rows in (1, 2, 3, 7, 33, 128):
            assert torch.equal(mirrored(x[:rows]), whole[:rows]), f"{rows} rows"
            assert torch.equal(mirrored(x[-rows:]), whole[-rows:]), f"the last {rows} rows"


def test_zeros_stay_zeros() -> None:
    """A row of zeros is divided by the square root of eps alone; NaN stays in its row."""
    _, mirrored = norms(16, dtype=torch.float32)
    x = torch.zeros(3, 16)
    x[1, 3] = torch.nan
    with torch.inference_mode():
        out = mirrored(x)
    assert not out[0].any()
    assert out[1].isnan().all()
    assert not out[2].any()
