"""Products of few rows in Triton's interpreter, against plain torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels import oracles
from tests.kernels.interpreted import Interpreted

pytest.importorskip("triton", reason="no Triton here")


def numbers(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).mul(0.3).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("turn", [64, 256])  # several iterations, and one
@pytest.mark.parametrize("inputs", [200, 256])
@pytest.mark.parametrize("ends", ["plain", "norm", "sum", "gated", "biased", "biased and gated", "gelu"])
def test_vector(kernels: Interpreted, ends: str, inputs: int, turn: int, dtype: torch.dtype) -> None:
    from engine.kernels.triton.gemm.skinny_gemm import ProductTiling

    outputs, gated, biased, gelu = 21, ends.endswith(("gated", "gelu")), "biased" in ends, ends == "gelu"
    x = numbers(1, inputs, seed=0, dtype=dtype)
    weight = numbers(outputs * (1 + gated), inputs, seed=1, dtype=dtype)
    scale = numbers(inputs, seed=2, dtype=dtype) + 1 if ends in ("norm", "gated") else None
    residual = numbers(1, outputs, seed=3, dtype=dtype) if ends in ("sum", "biased") else None
    bias = numbers(len(weight), seed=4, dtype=dtype) if biased else None
    found, _ = kernels.call(
        "gemm.skinny_gemm", "gemv", x, weight, norm_weight=scale, eps=1e-5, bias=bias, gated=gated, gelu=gelu,
        residual=residual, cut=ProductTiling(4, turn, warps=4),
    )  # fmt: skip
    h = x if scale is None else oracles.norm(x, None, scale, 1e-5)
    expected = F.linear(h, weight, bias)
    if gated:
        expected = oracles.swiglu(expected.unsqueeze(0), dtype, gelu=gelu)
    if residual is not None:
        expected = expected + residual
    tolerance = 1e-5 if dtype is torch.float32 else 4e-3
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("rows", "parts"), [(2, 1), (7, 3), (32, 2)])
def test_narrow(kernels: Interpreted, rows: int, parts: int) -> None:
    from engine.kernels.triton.gemm.skinny_gemm import ProductTiling

    x = numbers(rows, 384, seed=0, dtype=torch.float16)
    weight = numbers(70, 384, seed=1, dtype=torch.float16)
    found, _ = kernels.call(
        "gemm.skinny_gemm", "skinny_gemm", x, weight, ProductTiling(64, 64, warps=4, stages=2, parts=parts)
    )
    assert found.shape == (parts, rows, 70)
    assert found.dtype == (torch.float32 if parts > 1 else torch.float16)
    expected = F.linear(x.float(), weight.float())
    torch.testing.assert_close(found.float().sum(0), expected, rtol=2e-3, atol=2e-3)


def test_tilings_of_weights_with_few_outputs() -> None:
    """Of Qwen3-0.6B's layers, the output and QKV of DeepSeek-V2-Lite, and that of Qwen3-30B-A3B's attention.

    The QKV of Qwen3-1.7B and Qwen3-30B-A3B have too many outputs.
    """
    from engine.kernels.triton.gemm.skinny_gemm import ProductTiling, gemv_tiling

    shapes = ((4096, 1024), (1024, 2048), (1024, 3072), (2048, 2048), (3648, 2048), (2048, 4096))
    assert [gemv_tiling(*each, gated=False) for each in shapes] == [
        ProductTiling(4, 1024, 2), ProductTiling(2, 2048, 2), ProductTiling(4, 4096, 4),
        ProductTiling(2, 2048, 8), ProductTiling(4, 2048, 4), ProductTiling(2, 4096, 8),
    ]  # fmt: skip
    usual = ProductTiling(2, 2048, warps=4, stages=3)
    assert {gemv_tiling(each, 2048, gated=False) for each in (4096, 5120)} == {usual}
    assert gemv_tiling(3648, 4096, gated=False) == ProductTiling(1, 4096, warps=4, stages=3)
    assert gemv_tiling(3072, 2048, gated=True) == ProductTiling(1, 2048, warps=4, stages=3)


@pytest.mark.parametrize("inputs", [128, 1024, 2048, 3072, 4096, 14336])
@pytest.mark.parametrize("outputs", [64, 1024, 4096, 151936])
def test_tilings_divide_any_shape(inputs: int, outputs: int) -> None:
    from engine.kernels.triton.gemm.skinny_gemm import skinny_gemm_tiling

    weight = torch.empty(outputs, inputs, dtype=torch.bfloat16, device="meta")
    for rows in range(2, 129):
        cut = skinny_gemm_tiling(rows, weight)
        assert cut is not None or rows > 32
        assert cut is None or inputs % (cut.parts * cut.inputs) == 0
    assert skinny_gemm_tiling(129, weight) is None
    assert skinny_gemm_tiling(2, weight.float()) is None
