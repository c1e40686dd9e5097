"""One row of an FP8 product in turns, against the kernel without turns."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.kernels import switches
from engine.quant.fp8_linear import quantized
from tests.cases import one_row_of
from tests.kernels.steps.test_compiles import LARGE, compiled, decode

pytest.importorskip("triton", reason="no Triton here")

__all__ = ["compiled"]  # a fixture


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).mul(0.3)


def given(
    ends: str, outputs: int, inputs: int, dtype: torch.dtype
) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """The positional and other arguments of a product with these operations around it."""
    gated = "gated" in ends
    weight, scale = quantized(numbers(outputs * (1 + gated), inputs, seed=1))
    around: dict[str, Any] = {"eps": 1e-5, "gated": gated}
    if "norm" in ends:
        around["norm_weight"] = (numbers(inputs, seed=2) + 1).to(dtype)
    if "sum" in ends:
        around["residual"] = numbers(1, outputs, seed=3).to(dtype)
    return (numbers(1, inputs, seed=0).to(dtype), weight, scale[:, 0].contiguous()), around


# `most` 3: several turns, the last ones of some programs without outputs; 100: one.
@pytest.mark.parametrize(
    ("ends", "most", "rows"),
    one_row_of(3, product(("plain", "norm", "sum", "norm, gated"), (3, 100), (1, 4))),
)
def test_turns_equal_the_kernel_without_them(
    call: Callable[..., Any], ends: str, most: int, rows: int
) -> None:
    from engine.kernels.triton.gemm.skinny_gemm import ProductTiling

    x, around = given(ends, outputs=21, inputs=208, dtype=torch.float16)
    cut = ProductTiling(rows, 208, warps=4)
    found, _ = call("gemm.gemv_in_turns", "gemv_in_turns", *x, **around, cut=cut, most=most)
    expected, _ = call("gemm.skinny_gemm", "gemv", *x, **around)
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("ends", "outputs", "inputs"),
    [("norm", 6144, 4096), ("sum", 4096, 4096), ("norm, gated", 14336, 4096), ("sum", 4096, 14336)],
)
def test_products_of_a_large_model_on_a_gpu(
    ends: str, outputs: int, inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, and early in a graph, where no bit may change."""
    from engine.quant.gpu_products import Fp8Product

    (x, weight, scale), around = given(ends, outputs, inputs, torch.bfloat16)
    product = Fp8Product(weight.cuda(), scale[:, None].cuda(), None)
    x = x.cuda()
    around = {name: each.cuda() if isinstance(each, Tensor) else each for name, each in around.items()}
    expected = product.gemv(x, **around)
    monkeypatch.setattr(switches, "IN_TURNS", True)
    found = product.gemv(x, **around)
    assert float((found - expected).float().norm() / expected.float().norm()) < 4e-3

    def chain(*, pdl: bool) -> list[Tensor]:
        made = [product.gemv(x, **around, pdl=pdl)]
        for _ in range(8):
            made.append(product.gemv(made[-1][:, :1] * 0 + x, **around, pdl=pdl))
        return made

    chain(pdl=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        early = chain(pdl=True)
    for _ in range(20):
        graph.replay()
    assert all(torch.equal(each, found) for each in (*early, *chain(pdl=False)))


@pytest.mark.soak
def test_a_step_compiles_and_reads_only_weights_early(
    compiled: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switches, "IN_TURNS", True)
    decode(LARGE, 1, "fp8", "none")
    assert "_gemv_in_turns" in compiled


def test_only_large_products_take_turns() -> None:
    from engine.kernels.triton.gemm.gemv_in_turns import takes_turns

    assert takes_turns(4096, pdl=True, gated=True) and takes_turns(14336, residual=torch.empty(1))
    assert not takes_turns(1024) and not takes_turns(4096, bias=torch.empty(1)) and not takes_turns(4100)
    assert not takes_turns(4096, gelu=True)
