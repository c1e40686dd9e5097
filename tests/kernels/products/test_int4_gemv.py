"""One row times an int4 weight, interpreted and on a GPU, against the dequantized weight in torch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.cases import one_of
from tests.kernels import oracles
from tests.kernels.products.test_quantized import kept, numbers

pytest.importorskip("triton", reason="no Triton here")

Call = Callable[..., Any]
CLOSE = {"rtol": 4e-3, "atol": 4e-3}


def given(kind: str, outputs: int, inputs: int) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Return the kernels' arguments, and the weight in float32."""
    from engine.kernels.triton.gemm.int4_gemv import ones_of

    of = kept(kind, outputs, inputs)
    words, grid = of.given
    return (words, grid, ones_of(torch.float16, words.device)), of.weight


def halved(inputs: int) -> tuple[Any, Tensor]:
    """Return a norm without its last step, and the full norm."""
    from engine.kernels.triton.norm.norm import Normed

    stream = numbers(1, inputs, seed=0)
    squares = F.pad(stream, (0, -inputs % 3)).view(3, -1).square().sum(1, keepdim=True)
    half = Normed(stream.half(), squares, 1e-5)
    return half, oracles.norm(half.values.float(), None, torch.ones(inputs), 1e-5)


@pytest.mark.parametrize("kind", one_of(2, ["int4-32", "int4-64", "int4-96", "int4-128"]))
@pytest.mark.parametrize(
    ("outputs", "inputs", "of_program", "warps"),
    [(70, 384, 16, 1), (70, 1152, 32, 1), (48, 384, 32, 2), (16, 768, 16, 8)],
)
def test_any_number_of_iterations_and_warps(
    call: Call, outputs: int, inputs: int, of_program: int, warps: int, kind: str
) -> None:
    """In one iteration of all warps, and in several, of which the last is not full."""
    from engine.kernels.triton.gemm.skinny_gemm import ProductTiling
    from engine.kernels.triton.norm.norm import Normed

    weight, wide = given(kind, outputs, inputs)
    x = numbers(1, inputs, seed=0, dtype=torch.float16)
    cut = ProductTiling(of_program, inputs, warps)
    found, _ = call("gemm.int4_gemv", "int4_gemv", Normed(x), *weight, outputs, cut=cut)
    torch.testing.assert_close(found.float(), F.linear(x.float(), wide), **CLOSE)


@pytest.mark.parametrize(("inputs", "outputs"), [(1024, 100), (2048, 64), (3072, 64), (200, 40)])
def test_with_the_default_tiling(call: Call, inputs: int, outputs: int) -> None:
    """After the first part of a norm, with the inputs of small models and inputs that do not fill a unit."""
    weight, wide = given("int4-64" if inputs % 64 == 0 else "int4-32", outputs, inputs)
    half, h = halved(inputs)
    found, _ = call("gemm.int4_gemv", "int4_gemv", half, *weight, outputs)
    torch.testing.assert_close(found.float(), F.linear(h, wide), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("outputs", [48, 35])
def test_with_the_activation(call: Call, outputs: int) -> None:
    weight, wide = given("int4-64", 2 * outputs, 384)
    half, h = halved(384)
    found, _ = call("gemm.int4_gemv", "int4_gemv", half, *weight, outputs, gated=True)
    gate, up = F.linear(h, wide).chunk(2, 1)
    torch.testing.assert_close(found.float(), F.silu(gate) * up, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("outputs", "warps"), [(70, 1), (64, 2)])
def test_a_residual_sum_and_the_first_step_of_its_norm(call: Call, outputs: int, warps: int) -> None:
    from engine.kernels.triton.gemm.skinny_gemm import ProductTiling

    weight, wide = given("int4-64", outputs, 640)
    x, stream = (numbers(1, each, seed=seed, dtype=torch.float16) for seed, each in enumerate((640, outputs)))
    scale = numbers(outputs, seed=5, dtype=torch.float16) + 1
    cut = ProductTiling(16, 640, warps)
    half, (changed, *_) = call(
        "gemm.int4_gemv", "int4_gemv_residual_norm", stream.clone(), x, *weight, scale, 1e-5, cut=cut
    )
    expected = stream + F.linear(x.float(), wide).half()
    torch.testing.assert_close(changed, expected, **CLOSE)
    torch.testing.assert_close(half.values, changed * scale, **CLOSE)
    assert half.squares.shape == (-(-outputs // 16), 1) and half.eps == 1e-5
    torch.testing.assert_close(half.squares.sum(), changed.float().square().sum())


def test_zeros_are_exact_beside_huge_values(call: Call) -> None:
    """The other columns of x are multiplied by exactly zero."""
    from engine.kernels.triton.norm.norm import Normed

    weight, wide = given("int4-64", 32, 1024)
    x = torch.zeros(1, 1024, dtype=torch.float16)
    x[:, 70], x[:, 900] = 60000, 2**-14
    found, _ = call("gemm.int4_gemv", "int4_gemv", Normed(x / 16), *weight, 32)
    torch.testing.assert_close(found.float(), F.linear(x.float() / 16, wide), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("inputs", [128, 1024, 2048, 3072, 4096, 14336])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_no_more_warps_than_needed(inputs: int, group: int) -> None:
    from engine.kernels.triton.gemm.int4_gemv import int4_gemv_tiling

    words = torch.empty(4, inputs // 128, 64, 32, dtype=torch.int16, device="meta")
    grid = torch.empty(inputs // group, 256, dtype=torch.int32, device="meta")
    of_warp = 256 if group == 32 else 512
    for gated in (False, True):
        cut = int4_gemv_tiling(words, grid, gated=gated)
        at_once = cut.warps * of_warp
        assert cut.warps == 1 or at_once < 2 * inputs
        assert cut.outputs == (16 if gated or at_once < inputs else 32)


def test_conditions_for_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single row in bfloat16, with a compiler version whose thread layout is known."""
    from engine.kernels.triton.gemm import int4_gemv
    from engine.quant.gpu_products import Int4Product
    from engine.quant.grouped import GroupedWeight

    def takes(*, rows: int = 1, dtype: torch.dtype = torch.bfloat16) -> bool:
        grouped = GroupedWeight(torch.zeros(64, 128, dtype=torch.uint8), torch.ones(64, 2), torch.ones(64, 2))
        return Int4Product(grouped, None, 128, dtype).finishes(rows)

    assert takes()
    assert not takes(rows=2) and not takes(dtype=torch.float16)
    monkeypatch.setattr(int4_gemv, "KNOWN", False)
    assert not takes()
