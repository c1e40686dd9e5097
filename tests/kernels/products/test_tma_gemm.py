"""Tiled products in Triton's interpreter and on a GPU, against plain torch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.kernels import oracles
from tests.kernels.products.test_skinny_gemm import numbers

Call = Callable[..., Any]

pytest.importorskip("triton", reason="no Triton here")


@pytest.mark.parametrize(("rows", "parts"), [(17, 1), (40, 3), (70, 2)])
def test_products(call: Call, rows: int, parts: int) -> None:
    """The last tiles of rows and of outputs are not full."""
    from engine.kernels.triton.gemm.tma_gemm import Tiling
    from engine.kernels.triton.norm.norm import Normed

    x = numbers(rows, 384, seed=0, dtype=torch.float16)
    weight = numbers(72, 384, seed=1, dtype=torch.float16)
    how = Tiling(32, 64, 64, warps=4, stages=2, parts=parts)
    found, _ = call("gemm.tma_gemm", "tma_gemm", Normed(x), weight, how)
    assert found.shape == (parts, rows, 72)
    assert found.dtype == (torch.float32 if parts > 1 else torch.float16)
    reference = F.linear(x.float(), weight.float())
    torch.testing.assert_close(found.float().sum(0), reference, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("rows", "parts"), [(5, 4), (40, 1), (70, 2)])
def test_products_in_fp8(call: Call, rows: int, parts: int) -> None:
    from engine.kernels.triton.gemm.quantize_fp8 import KIND
    from engine.kernels.triton.gemm.tma_gemm import Tiling
    from engine.kernels.triton.norm.norm import Normed

    x, weight = (
        numbers(each, 512, seed=at, dtype=torch.float32).to(KIND) for at, each in enumerate((rows, 72))
    )
    steps, scale = (numbers(each, seed=2, dtype=torch.float32).abs() for each in (rows, 72))
    given = Normed(x, steps=steps, unrounded=torch.float16)
    how = Tiling(32, 64, 128, warps=4, stages=2, parts=parts)
    found, _ = call("gemm.tma_gemm", "tma_gemm", given, weight, how, scale)
    assert found.shape == (parts, rows, 72)
    assert found.dtype == (torch.float32 if parts > 1 else torch.float16)
    reference = F.linear(x.float(), weight.float()) * steps[:, None] * scale
    torch.testing.assert_close(
        found.float().sum(0), reference, rtol=4e-3, atol=4e-3 * float(reference.abs().max())
    )


@pytest.mark.parametrize(("rows", "parts"), [(5, 2), (40, 1), (70, 3)])
def test_products_in_int8(call: Call, rows: int, parts: int) -> None:
    from engine.kernels.triton.gemm.tma_gemm import Tiling
    from engine.kernels.triton.norm.norm import Normed

    draw = torch.Generator().manual_seed(0)
    weight = torch.randint(-127, 128, (72, 384), generator=draw)
    scale, x = torch.rand(72, generator=draw) / 100, numbers(rows, 384, seed=0, dtype=torch.float16)
    how = Tiling(32, 64, 64, warps=4, stages=2, parts=parts)
    offset = (weight + 128).to(torch.uint8)
    found, _ = call("gemm.tma_gemm", "tma_gemm", Normed(x), offset, how, scale)
    assert found.shape == (parts, rows, 72)
    assert found.dtype == (torch.float32 if parts > 1 else torch.float16)
    reference = F.linear(x.float(), weight.float()) * scale
    torch.testing.assert_close(
        found.float().sum(0), reference, rtol=2e-3, atol=2e-3 * float(reference.abs().max())
    )


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("rows", "tall", "outputs", "turn", "parts"),
    [
        (129, 256, 64, 64, 4),
        (192, 256, 64, 64, 1),
        (100, 128, 64, 128, 2),
        (100, 128, 128, 64, 1),
        (40, 64, 64, 128, 1),
    ],
)
def test_products_in_int8_are_the_same_each_time_on_a_gpu(
    rows: int, tall: int, outputs: int, turn: int, parts: int
) -> None:
    """Beside other products, so that tensor cores are late: a head with 129 rows had a NaN once."""
    from engine.kernels.triton.gemm.tma_gemm import Tiling, tma_gemm
    from engine.kernels.triton.norm.norm import Normed

    draw = torch.Generator("cuda").manual_seed(0)
    weight = torch.randint(1, 256, (5000, 1024), dtype=torch.uint8, device="cuda", generator=draw)
    scale = torch.rand(5000, device="cuda", generator=draw) / 100
    x = Normed(torch.randn(rows, 1024, device="cuda", generator=draw).bfloat16())
    how, beside = Tiling(tall, outputs, turn, warps=4, stages=3, parts=parts), torch.cuda.Stream()
    first = tma_gemm(x, weight, how, scale)
    reference = F.linear(x.values.float(), weight.float() - 128) * scale
    assert float((first.float().sum(0) - reference).norm() / reference.norm()) < 5e-3
    other = torch.randn(2048, 2048, device="cuda").bfloat16()
    for _ in range(60):
        with torch.cuda.stream(beside):
            _ = other @ other
        found = [tma_gemm(x, weight, how, scale) for _ in range(50)]
        assert all(torch.equal(each, first) for each in found)


@pytest.mark.parametrize("rows", [2, 16, 17, 33, 64, 65, 128, 129, 192, 256])
@pytest.mark.parametrize(
    "shape", [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (1024, 3200), (128256, 4096)], ids=str
)
@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_tiles_in_eight_bits_fit(
    rows: int, shape: tuple[int, int], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the wider ones of int8, which are off."""
    from engine.kernels.triton.gemm import tma_gemm
    from engine.kernels.triton.gemm.tma_gemm import ROOM, WIDE, tma_fp8_tiling, tma_int8_tiling

    monkeypatch.setattr(tma_gemm, "INT8_WIDE", WIDE)
    weight = torch.empty(shape, dtype=torch.uint8, device="meta")
    tiling = tma_fp8_tiling if kind == "fp8" else tma_int8_tiling
    how = tiling(rows, weight)
    assert (how is None) == (rows > 128 and shape[0] != 4096 if kind == "fp8" else rows < 33)
    if how is not None:
        width = 1 if kind == "fp8" else 2
        assert (how.rows * width + how.outputs) * how.inputs * how.stages <= ROOM
        assert shape[1] % (how.parts * how.inputs) == 0


def test_with_the_activation(call: Call) -> None:
    """The last tile of the gates extends into up's part, which is not stored."""
    from engine.kernels.triton.gemm.tma_gemm import Tiling
    from engine.kernels.triton.norm.norm import Normed

    x = numbers(20, 256, seed=0, dtype=torch.float16)
    weight = numbers(2 * 72, 256, seed=1, dtype=torch.float16)
    found, _ = call(
        "gemm.tma_gemm", "tma_gemm", Normed(x), weight, Tiling(16, 64, 128, warps=4, stages=2), gated=True
    )
    reference = oracles.swiglu(F.linear(x.float(), weight.float()).unsqueeze(0), torch.float16)
    torch.testing.assert_close(found[0].float(), reference.float(), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("gated", [False, True])
def test_the_product_applies_the_last_step_of_a_norm(call: Call, gated: bool) -> None:
    """linear_residual_norm.py scales the sum, and returns the squares in pieces."""
    from engine.kernels.triton.gemm.tma_gemm import Tiling
    from engine.kernels.triton.norm.norm import Normed

    rows, width, inputs = 21, 72, 128
    stream, x = (numbers(rows, each, seed=at, dtype=torch.float16) for at, each in enumerate((width, inputs)))
    weight = (numbers(width, inputs, seed=2, dtype=torch.float32) / inputs**0.5).half()
    scale = numbers(width, seed=3, dtype=torch.float16)
    how = Tiling(16, 32, 64, warps=4, stages=2)
    found, (changed, *_) = call(
        "gemm.linear_residual_norm", "linear_residual_norm", stream.clone(), x, weight, scale, 1e-5, how
    )
    added = F.linear(x.float(), weight.float()).half().unsqueeze(0)
    reference = oracles.norm(stream, added, scale, 1e-5)  # which changes the stream
    torch.testing.assert_close(changed, stream, rtol=2e-3, atol=2e-3)
    assert found.squares.shape == (3, rows)
    length = torch.rsqrt(found.squares.sum(0) / width + found.eps)[:, None]
    torch.testing.assert_close((found.values * length).half(), reference, rtol=4e-3, atol=4e-3)

    padded = Normed(*(F.pad(found.values, (0, 128 - width)),), found.squares * 128 / width, found.eps)
    after = (numbers(2 * 64, 128, seed=4, dtype=torch.float32) / width**0.5).half()
    got, _ = call(
        "gemm.tma_gemm", "tma_gemm", padded, after, Tiling(16, 64, 64, warps=4, stages=2), gated=gated
    )
    plain = F.linear(F.pad(reference, (0, 128 - width)).float(), after.float()).half()
    if gated:
        plain = oracles.swiglu(plain.unsqueeze(0), torch.float16)
    torch.testing.assert_close(got[0].float(), plain.float(), rtol=6e-3, atol=6e-3)


def test_nan_and_infinity_stay_in_their_row(call: Call) -> None:
    """Padding rows hold anything; the squares of one may overflow."""
    from engine.kernels.triton.gemm.tma_gemm import Tiling
    from engine.kernels.triton.norm.norm import Normed

    rows, width = 21, 128
    stream, x = (numbers(rows, width, seed=at, dtype=torch.float16) for at in range(2))
    weight = (numbers(width, width, seed=2, dtype=torch.float32) / width**0.5).half()
    scale, how = numbers(width, seed=3, dtype=torch.float16), Tiling(16, 32, 64, warps=4, stages=2)

    def both(stream: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        half, (changed, *_) = call(
            "gemm.linear_residual_norm", "linear_residual_norm", stream.clone(), x, weight, scale, 1e-5, how
        )
        squares = torch.where(torch.arange(rows) == 7, torch.inf, half.squares)
        out, _ = call(
            "gemm.tma_gemm", "tma_gemm", Normed(half.values, squares, 1e-5), weight, how, gated=True
        )
        return changed, half.values, out[0]

    reference = both(stream, x)
    stream[5], x[11], x[20] = torch.nan, torch.nan, torch.inf
    sound = [row for row in range(rows) if row not in (5, 7, 11, 20)]
    for found, expected in zip(both(stream, x), reference, strict=True):
        assert torch.equal(found[sound], expected[sound])
        assert not found[[5, 11, 20]].isfinite().all(1).any()


@pytest.mark.parametrize("inputs", [128, 1024, 2048, 3072, 4096, 14336])
@pytest.mark.parametrize("outputs", [64, 1024, 4096, 28672, 151936])
def test_tilings_divide_any_shape(inputs: int, outputs: int) -> None:
    from engine.kernels.triton.gemm.linear_residual_norm import linear_residual_norm_tiling
    from engine.kernels.triton.gemm.tma_gemm import ROOM, tma_gemm_tiling, tma_swiglu_tiling

    weight = torch.empty(outputs, inputs, dtype=torch.bfloat16, device="meta")
    small = outputs * inputs <= 2**23
    for rows in range(1, 300):
        for make, beside, fewest, most in (
            (tma_gemm_tiling, 1, 33, 128),
            (tma_swiglu_tiling, 2, 33, 256 if small else 128),
            (linear_residual_norm_tiling, 1, 65, 256 if small and inputs % 256 == 0 else 0),
        ):
            how = make(rows, weight)
            assert (
                how is not None
                or not fewest <= rows <= most
                or (make is tma_swiglu_tiling and 128 < rows <= 160)
            )
            if how is not None:
                assert inputs % (how.parts * how.inputs) == 0
                assert (beside * how.outputs + how.rows) * how.inputs * 2 * how.stages <= ROOM
                assert beside * how.outputs * how.rows <= how.warps * 32 * 128  # sums in registers
    assert tma_gemm_tiling(64, weight.float()) is None
