"""Products with quantized weights in Triton's interpreter, against the dequantized weight in torch."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.quant import fp4, fp8_linear, int4, int8
from engine.quant.grouped import GroupedWeight
from tests.cases import soak
from tests.kernels import oracles
from tests.kernels.floats import fp4_products
from tests.kernels.interpreted import Interpreted

pytest.importorskip("triton", reason="no Triton here")

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)


def numbers(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).mul(0.3).to(dtype)


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight as the kernels take it, and the exact numbers it stands for."""

    module: str
    given: tuple[Tensor, ...]
    weight: Tensor  # float32
    rounds: bool = False
    factor: Tensor | None = None

    @property
    def in_nibbles(self) -> bool:
        return self.module == "gemm.int4_gemm"

    def rounded(self, x: Tensor) -> Tensor:
        if not self.rounds:
            return x.float()
        eight, step = fp8_linear.quantized(x)
        return eight.float() * step


def kept(kind: str, outputs: int, inputs: int, seed: int = 1) -> QuantizedWeight:
    from engine.kernels.triton.gemm import int4_gemm

    weight = numbers(outputs, inputs, seed=seed)
    match kind:
        case "int8":
            whole, scale = int8.quantized(weight)
            bits = whole.view(torch.uint8) ^ 128
            return QuantizedWeight("gemm.skinny_gemm", (bits, scale), whole.float() * scale[:, None])
        case "fp8":
            eight, step = fp8_linear.quantized(weight)
            return QuantizedWeight(
                "gemm.skinny_gemm", (eight, step[:, 0].contiguous()), eight.float() * step, rounds=True
            )
        case "nvfp4" | "mxfp4":
            return small_floats(16 if kind == "nvfp4" else 32, outputs, inputs, seed)
        case _:
            group = int(kind.removeprefix("int4-"))
            by = int4.grouped(weight, group)
            more = -by.numbers.shape[1] % int4_gemm.UNIT
            scale, zero = (F.pad(each, (0, more // group)) for each in (by.scale, by.zero))
            words = int4_gemm.pack_int4(F.pad(by.numbers, (0, more)))
            scales, offsets = (each.half().float() for each in (scale, (8 - zero) * scale))
            exact = GroupedWeight(F.pad(by.numbers, (0, more)), scales, 8 - offsets / scales.clamp(min=1e-20))
            grid = int4_gemm.scale_grid(scale, zero, torch.float16)
            return QuantizedWeight("gemm.int4_gemm", (words, grid), exact.dequantized()[:, :inputs])


def small_floats(group: int, outputs: int, inputs: int, seed: int) -> QuantizedWeight:
    """Random 4-bit floats: with the smallest scales and usual ones, and inputs padded to a unit."""
    from engine.kernels.triton.gemm import int4_gemm

    draw = torch.Generator().manual_seed(seed)
    width = inputs // group * group
    low, high = (1, 0x3A) if group == 16 else (115, 128)
    scale = torch.randint(low, high, (outputs, width // group), generator=draw, dtype=torch.uint8)
    pairs = torch.randint(0, 256, (outputs, width // 2), generator=draw, dtype=torch.uint8)
    weight = fp4.Fp4Weight(pairs, scale, torch.rand(outputs, generator=draw) + 0.1, group)
    more = -width % int4_gemm.UNIT
    words = int4_gemm.pack_int4(F.pad(fp4.unpacked(pairs), (0, more)))
    grid = int4_gemm.byte_grid(F.pad(scale, (0, more // group)))
    return QuantizedWeight("gemm.int4_gemm", (words, grid), weight.dequantized(), factor=weight.factor)


EIGHT = ["int8", "fp8"]
KINDS = [*EIGHT, "int4-32", "int4-64", "int4-96", "int4-128", "nvfp4", "mxfp4"]


@pytest.mark.parametrize("kind", EIGHT)
@pytest.mark.parametrize(
    ("ends", "inputs", "turns", "dtype"),
    [
        ("plain", 384, 2, torch.float32),
        ("norm", 200, 1, torch.float16),
        ("norm", 384, 2, torch.float32),
        ("sum", 200, 1, torch.float32),
        ("gated", 384, 2, torch.float16),
    ],
)
def test_one_row(
    kernels: Interpreted, ends: str, inputs: int, turns: int, kind: str, dtype: torch.dtype
) -> None:
    from engine.kernels.triton.gemm.skinny_gemm import ProductTiling

    outputs, gated = 13, ends == "gated"
    of = kept(kind, outputs * (1 + gated), inputs)
    x = numbers(1, inputs, seed=0, dtype=dtype)
    scale = numbers(inputs, seed=2, dtype=dtype) + 1 if ends in ("norm", "gated") else None
    residual = numbers(1, outputs, seed=3, dtype=dtype) if ends == "sum" else None
    turn = 256 // turns
    around: dict[str, Any] = {"norm_weight": scale, "eps": 1e-5, "gated": gated, "residual": residual}
    found, _ = kernels.call(
        of.module, "gemv", x, *of.given, cut=ProductTiling(4, turn, warps=4, parts=2), **around
    )
    h = x if scale is None else oracles.norm(x, None, scale, 1e-5)
    expected = F.linear(of.rounded(h), of.weight).to(dtype)
    if gated:
        expected = oracles.swiglu(expected.unsqueeze(0), dtype)
    if residual is not None:
        expected = expected + residual
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "parts", "tall"), [(2, 3, 8), (19, 3, 0), *soak((2, 1, 0), (19, 1, 16))])
def test_few_rows(kernels: Interpreted, rows: int, parts: int, tall: int, kind: str) -> None:
    """`tall`: the rows of a program, which then has two warps; 0: all rows, and four warps."""
    from engine.kernels.triton.gemm.skinny_gemm import ProductTiling

    of, dtype = kept(kind, 70, 384), torch.float16
    x = numbers(rows, 384, seed=0, dtype=dtype)
    cut = ProductTiling(64, 128, warps=2 if tall else 4, stages=2, parts=parts, rows=tall)
    if of.rounds:
        (eight, steps), _ = kernels.call("gemm.quantize_fp8", "quantize_fp8", x, 384)
        wide, step = fp8_linear.quantized(x)
        assert torch.equal(steps, step[:, 0]) and torch.equal(eight.float(), wide.float())
        weight, by = of.given
        found, _ = kernels.call("gemm.skinny_gemm", "skinny_gemm", eight, weight, cut, by, steps, dtype=dtype)
    elif of.in_nibbles:
        found = multiplied(kernels, x, of, 70, parts, tall or 16)
    else:
        weight, by = of.given
        found, _ = kernels.call("gemm.skinny_gemm", "skinny_gemm", x, weight, cut, by)
    assert found.shape == (parts, rows, 70)
    assert found.dtype == (torch.float32 if parts > 1 else dtype)
    expected = F.linear(of.rounded(x), of.weight)
    torch.testing.assert_close(found.float().sum(0), expected, rtol=4e-3, atol=4e-3)


def multiplied(
    kernels: Interpreted, x: Tensor, of: QuantizedWeight, outputs: int, parts: int = 1, tall: int = 16
) -> Tensor:
    """Two units an iteration if a part has an even number of them."""
    from engine.kernels.triton.gemm.tma_gemm import Tiling

    units = of.given[0].shape[1] // parts
    how = Tiling(tall, 32, 128 * (2 - units % 2), warps=1, stages=2, parts=parts)
    return kernels.call("gemm.int4_gemm", "int4_gemm", x, *of.given, outputs, how, of.factor)[0]


def test_other_rows_in_a_tile_change_no_bit(kernels: Interpreted) -> None:
    of, x = kept("int4-64", 70, 384), numbers(8, 384, seed=0, dtype=torch.float16)
    whole = multiplied(kernels, x, of, 70, tall=8)
    assert torch.equal(multiplied(kernels, x[:3], of, 70, tall=8), whole[:, :3])


@pytest.mark.parametrize(
    ("kind", "inputs"), [("int4-32", 200), ("int4-32", 512), ("nvfp4", 208), *soak(("mxfp4", 224))]
)
def test_inputs_that_do_not_fill_a_unit(kernels: Interpreted, kind: str, inputs: int) -> None:
    of, x = kept(kind, 70, inputs), numbers(3, inputs, seed=0, dtype=torch.float16)
    found = multiplied(kernels, x, of, 70)[0]
    torch.testing.assert_close(found.float(), F.linear(x.float(), of.weight), rtol=4e-3, atol=4e-3)


def test_rows_are_padded_with_zeros(kernels: Interpreted) -> None:
    """torch's scaled product requires widths that are multiples of 16."""
    x = numbers(3, 100, seed=0)
    x[1] = 0
    (eight, steps), _ = kernels.call("gemm.quantize_fp8", "quantize_fp8", x, 112)
    wide, step = fp8_linear.quantized(F.pad(x, (0, 12)))
    assert torch.equal(eight.float(), wide.float()) and torch.equal(steps, step[:, 0])


@DTYPES
@pytest.mark.parametrize("inputs", [224, *soak(384)])
@pytest.mark.parametrize("kind", ["int8", "int4-32", "int4-128", "nvfp4", "mxfp4"])
def test_dequantized(kernels: Interpreted, kind: str, inputs: int, dtype: torch.dtype) -> None:
    of = kept(kind, 9, inputs)
    if of.factor is not None:
        found, _ = kernels.call("gemm.dequantize", "dequantize_fp4", *of.given, of.factor, inputs, dtype)
    elif of.in_nibbles:
        found, _ = kernels.call(
            "gemm.dequantize", "dequantize_int4", *of.given, torch.float16, 9, inputs, dtype
        )
    else:
        found, _ = kernels.call("gemm.dequantize", "dequantize_int8", *of.given, dtype)
    torch.testing.assert_close(found, of.weight.to(dtype), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("group", [16, *soak(32)])
def test_products_of_small_floats(kernels: Interpreted, group: int) -> None:
    """`many` is dequantized, also where the kernel cannot multiply in the dtype of the rows."""
    draw = torch.Generator().manual_seed(0)
    pairs = torch.randint(0, 256, (70, 96), generator=draw, dtype=torch.uint8)
    scale = torch.randint(*((1, 0x3A) if group == 16 else (115, 126)), (70, 192 // group), generator=draw)
    weight = fp4.Fp4Weight(pairs, scale.byte(), torch.rand(70, generator=draw) + 0.1, group)
    x, bias = numbers(257, 192, seed=0, dtype=torch.float16), numbers(70, seed=1, dtype=torch.float16)
    given = (fp4.unpacked(pairs), weight.scale, weight.factor)
    few, many, plain, own = kernels.run(fp4_products, given, x, bias)
    torch.testing.assert_close(plain, weight.dequantized(), rtol=1e-6, atol=1e-9)
    expected = F.linear(x.float(), weight.dequantized(), bias.float())
    torch.testing.assert_close(few.float(), expected[:1], rtol=4e-3, atol=4e-3)
    torch.testing.assert_close(many.float(), expected, rtol=4e-3, atol=8e-3)
    torch.testing.assert_close(own.float(), expected[:1], rtol=4e-3, atol=4e-3)


def test_packed_numbers_are_unpacked() -> None:
    from engine.kernels.triton.gemm import int4_gemm

    whole = torch.randint(0, 16, (70, 256), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    words = int4_gemm.pack_int4(whole)
    assert words.shape == (2, 2, 64, 32)
    assert torch.equal(int4_gemm.unpack_int4(words)[:70], whole)


@pytest.mark.parametrize(("width", "group"), [(480, 96), (96, 96), (160, 32), (256, 64), (2880, 2880)])
def test_any_group_size_is_kept(width: int, group: int) -> None:
    """A checkpoint's group size may not divide the width that inputs are padded to."""
    from engine.quant.gpu_products import Int4Product

    draw = torch.Generator().manual_seed(0)
    scale, zero = (torch.rand(5, width // group, generator=draw).half().float() for _ in range(2))
    whole = torch.randint(0, 16, (5, width), generator=draw, dtype=torch.uint8)
    weight = GroupedWeight(whole, scale, zero)
    made = Int4Product(weight, None, width, torch.float16)
    padded = made.words.shape[1] * 128
    assert padded >= width and padded % len(made.grid) == 0
    torch.testing.assert_close(made.dequantized(), weight.dequantized(), rtol=0, atol=6e-3)


@pytest.mark.parametrize("inputs", [128, 1024, 4096, 14336])
@pytest.mark.parametrize("outputs", [64, 1024, 4096, 28672])
def test_tilings_divide_any_shape(inputs: int, outputs: int) -> None:
    from engine.kernels.triton.gemm import int4_gemm, skinny_gemm

    eight = torch.empty(outputs, inputs, dtype=torch.uint8, device="meta")
    words = torch.empty(outputs // 64, inputs // 128, 64, 32, dtype=torch.int16, device="meta")
    for rows in (1, 2, 16, 17, 33, 64, 65, 128, 256):
        for weight in (eight, eight.view(torch.float8_e4m3fn)):
            cut = skinny_gemm.int8_gemm_tiling(rows, weight)
            assert cut is not None and inputs % (cut.parts * cut.inputs) == 0
        four = int4_gemm.int4_gemm_tiling(rows, words)
        assert inputs % (four.parts * four.inputs) == 0 == outputs % four.outputs
    assert skinny_gemm.int8_gemm_tiling(2, eight[:, :100]) is None
