"""Products of a few rows with a weight, [outputs, inputs]: the bottleneck of small decode batches.

They are bound by reading the weight. `gemv` is for one row: a program multiplies a few rows of the weight and
sums, with an optional norm before it, and a residual sum or the MLP's activation after it. `skinny_gemm` is
for up to 128 rows: a tile of the weight is one operand of a tensor core product, and if there are few outputs
the inputs are split too, which leaves partial sums. docs/gpu-steps.md compares them with cuBLAS.

A weight may have 8 bits, with a scale per output: integers offset by 128, or floats, for which x is rounded
too. int4_gemm.py has the products for 4 bits.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.gemm.quantize_fp8 import fp8_scale
from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.norm.norm import norm_scaled

NARROW = 32  # up to this many rows `skinny_gemm` is faster than cuBLAS for any weight
SMALL = 2**23  # up to this many numbers of a weight it stays faster for more rows
ENOUGH = 132  # programs that keep a GPU busy
# Tilings for one row: the weight's inputs, padded, and its most outputs; then a program's outputs and warps.
# All programs run at once, so the next kernel can start. docs/gpu-steps.md has the weights that were timed.
NARROW_WEIGHTS = (
    (1024, 4096, 4, 2),
    (2048, 1024, 2, 2), (2048, 18 * ENOUGH, 2, 8), (2048, 28 * ENOUGH, 4, 4),
    (4096, 1024, 4, 4), (4096, 16 * ENOUGH, 2, 8),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProductTiling:
    """How a product is split into programs; tma_gemm.py has a Tiling for kernels that also split rows."""

    outputs: int  # per program
    inputs: int  # per turn
    warps: int
    stages: int = 1  # turns whose weights are in flight
    parts: int = 1  # programs that share the inputs of the same outputs
    rows: int = 0  # per program; 0: all of them


# $0 to $3 are the four bytes of $4, minus 128, as floats. Combining a byte with a power of two gives the
# float of their sum in one instruction, which is faster than a conversion.
WIDE = tl.constexpr(
    "{ .reg .b32 n, power, less; mov.b32 power, 0x4b000000; mov.b32 less, 0xcb000080;"  # 2**23; -2**23 - 128
    + "".join(f"prmt.b32 n, $4, power, {0x7540 + nth}; add.rn.f32 ${nth}, n, less;" for nth in range(4))
    + "}"
)


@triton.jit
def as_float(number):
    if number.dtype == tl.uint8:
        return tl.inline_asm_elementwise(
            WIDE, "=r,=r,=r,=r,r", [number], dtype=tl.float32, is_pure=True, pack=4
        )
    return number.to(tl.float32)


@triton.jit
def as_operand(number):
    """Like as_float, in two instructions: faster before a tensor core product."""
    if number.dtype == tl.uint8:
        return (number.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True) - 8388736.0
    return number.to(tl.float32)


# $0 and $1 are the four bytes of $2 as 16-bit floats. The fraction of a float16 with 1024 added holds a byte.
# That of a bfloat16 holds seven bits, with 128 added, and the eighth bit is subtracted by an fma with minus
# one: GPUs before Hopper have no bfloat16 addition.
SHORT = {
    torch.float16: """{
        .reg .b32 n, less;
        mov.b32 less, 0x64806480;
        prmt.b32 n, $2, 0x64646464, 0x4140;
        sub.rn.f16x2 $0, n, less;
        prmt.b32 n, $2, 0x64646464, 0x4342;
        sub.rn.f16x2 $1, n, less;
    }""",
    torch.bfloat16: """{
        .reg .b32 n, low, less, minus;
        mov.b32 minus, 0xbf80bf80;
        prmt.b32 n, $2, 0, 0x4140;
        lop3.b32 low, n, 0x007f007f, 0x43004300, 0xea;
        lop3.b32 less, n, 0x00800080, 0x43804380, 0x6a;
        fma.rn.bf16x2 $0, less, minus, low;
        prmt.b32 n, $2, 0, 0x4342;
        lop3.b32 low, n, 0x007f007f, 0x43004300, 0xea;
        lop3.b32 less, n, 0x00800080, 0x43804380, 0x6a;
        fma.rn.bf16x2 $1, less, minus, low;
    }""",
}


@triton.jit
def rms_scaled(x, scale, shrink, norm_weight, dtype: tl.constexpr):
    return norm_scaled(x * shrink, scale, norm_weight, dtype).to(tl.float32)


@triton.jit
def silu_mul(gate, up):
    """silu(gate) * up."""
    wide = gate.to(tl.float32)
    silu = (wide * tl.sigmoid(wide)).to(gate.dtype).to(tl.float32)
    return (silu * up.to(tl.float32)).to(gate.dtype)


@triton.jit
def gelu_mul(gate, up):
    """gelu(gate) * up, by tanh, which a sigmoid of twice the number gives."""
    wide = gate.to(tl.float32)
    inner = 1.5957691216057308 * (wide + 0.044715 * wide * wide * wide)
    gelu = (wide * tl.sigmoid(inner)).to(gate.dtype).to(tl.float32)
    return (gelu * up.to(tl.float32)).to(gate.dtype)


@triton.jit
def _weights(weight, row, at, fits, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr):
    mask = (row < OUTPUTS)[:, None] & fits[None, :]
    return tl.load(weight + row.to(tl.int64)[:, None] * INPUTS + at[None, :], mask=mask, other=0.0)


@triton.jit
def _gemv(
    out, x, weight, weight_scale, norm_weight, bias, residual, eps,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr, TURN: tl.constexpr,
    SCALED: tl.constexpr, ROUNDED: tl.constexpr, NORM: tl.constexpr, BIASED: tl.constexpr,
    GATED: tl.constexpr, GELU: tl.constexpr, ADD: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, TURN)
    dtype = x.dtype.element_ty
    ALL: tl.constexpr = 2 * OUTPUTS if GATED else OUTPUTS
    # Load what does not depend on the previous kernel while that one ends.
    first = _weights(weight, row, at, at < INPUTS, ALL, INPUTS)
    if GATED:
        first_up = _weights(weight, row + OUTPUTS, at, at < INPUTS, ALL, INPUTS)
    if NORM:
        first_scale = tl.load(norm_weight + at, mask=at < INPUTS, other=0.0).to(tl.float32)
    if SCALED:
        steps = tl.load(weight_scale + row, mask=row < OUTPUTS, other=0.0)
        if GATED:
            steps_up = tl.load(weight_scale + OUTPUTS + row, mask=row < OUTPUTS, other=0.0)
    if BIASED:
        biases = tl.load(bias + row, mask=row < OUTPUTS, other=0.0).to(tl.float32)
        if GATED:
            biases_up = tl.load(bias + OUTPUTS + row, mask=row < OUTPUTS, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()

    value = tl.load(x + at, mask=at < INPUTS, other=0.0).to(tl.float32)
    step = 1.0
    if NORM or ROUNDED:
        if TURN >= INPUTS:
            every = at
            all_of_it = value
        else:
            every = tl.arange(0, WHOLE)
            all_of_it = tl.load(x + every, mask=every < INPUTS, other=0.0).to(tl.float32)
    if NORM:
        shrink = tl.rsqrt(tl.sum(all_of_it * all_of_it) / INPUTS + eps)
        value = rms_scaled(value, first_scale, shrink, norm_weight, dtype)
    if ROUNDED:
        if NORM:
            all_scale = tl.load(norm_weight + every, mask=every < INPUTS, other=0.0).to(tl.float32)
            all_of_it = rms_scaled(all_of_it, all_scale, shrink, norm_weight, dtype)
        step = fp8_scale(all_of_it, 0)
        finer = tl.div_rn(1.0, step)
        value = (value * finer).to(tl.float8e4nv).to(tl.float32)
    total = as_float(first) * value[None, :]
    if GATED:
        total_up = as_float(first_up) * value[None, :]
    for begin in tl.range(TURN, INPUTS, TURN, num_stages=STAGES):
        here = begin + at
        value = tl.load(x + here, mask=here < INPUTS, other=0.0).to(tl.float32)
        if NORM:
            by_norm = tl.load(norm_weight + here, mask=here < INPUTS, other=0.0).to(tl.float32)
            value = rms_scaled(value, by_norm, shrink, norm_weight, dtype)
        if ROUNDED:
            value = (value * finer).to(tl.float8e4nv).to(tl.float32)
        total += as_float(_weights(weight, row, here, here < INPUTS, ALL, INPUTS)) * value[None, :]
        if GATED:
            up = _weights(weight, row + OUTPUTS, here, here < INPUTS, ALL, INPUTS)
            total_up += as_float(up) * value[None, :]

    result = tl.sum(total, 1)
    if GATED:
        result_up = tl.sum(total_up, 1)
    if SCALED:
        result *= steps * step
        if GATED:
            result_up *= steps_up * step
    if BIASED:
        result += biases
        if GATED:
            result_up += biases_up
    result = result.to(dtype)
    if GATED:
        up = result_up.to(dtype)
        result = gelu_mul(result, up) if GELU else silu_mul(result, up)
    if ADD:
        before = tl.load(residual + row, mask=row < OUTPUTS, other=0.0).to(tl.float32)
        result = (before + result.to(tl.float32)).to(dtype)
    tl.store(out + row, result, mask=row < OUTPUTS)


def gemv(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor | None = None,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    bias: Tensor | None = None,
    gated: bool = False,
    gelu: bool = False,
    residual: Tensor | None = None,
    pdl: bool = False,
    cut: ProductTiling | None = None,
) -> Tensor:
    """[1, inputs] -> [1, outputs].

    `weight_scale`: the scales of an 8-bit weight. `norm_weight`: x is normed first. `gated`: silu, or `gelu`,
    of the first half of the outputs, times the second. `residual` is added. `pdl` as in Tile.
    """
    inputs = x.shape[1]
    outputs = len(weight) // 2 if gated else len(weight)
    cut = cut or (gemv_tiling if weight.itemsize > 1 else int8_gemv_tiling)(outputs, inputs, gated)
    out = torch.empty(1, outputs, dtype=x.dtype, device=x.device)
    _gemv[(triton.cdiv(outputs, cut.outputs),)](
        out, x, weight, x if weight_scale is None else weight_scale,
        x if norm_weight is None else norm_weight, bias, x if residual is None else residual, eps,
        OUTPUTS=outputs, INPUTS=inputs, WHOLE=power(inputs), ROWS=cut.outputs, TURN=cut.inputs,
        SCALED=weight_scale is not None, ROUNDED=weight.dtype is torch.float8_e4m3fn,
        NORM=norm_weight is not None, BIASED=bias is not None, GATED=gated, GELU=gelu,
        ADD=residual is not None, STAGES=cut.stages, PDL=pdl, num_warps=cut.warps, **launch(pdl),
    )  # fmt: skip
    return out


@triton.jit
def multiplied_rows(
    out, x, weight, weight_scale, x_scale, rows, tile, part,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    TURN: tl.constexpr, SCALED: tl.constexpr, ROUNDED: tl.constexpr, SHORT: tl.constexpr,
    PARTS: tl.constexpr, TILES: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A tile, of a part of the inputs."""
    # Programs that read the same weights with other rows are adjacent.
    output = tile // TILES * COLUMNS + tl.arange(0, COLUMNS)
    there = output < OUTPUTS
    row = tile % TILES * ROWS + tl.arange(0, ROWS)
    SHARE: tl.constexpr = INPUTS // PARTS
    at = part * SHARE + tl.arange(0, TURN)
    of_weight = weight + output.to(tl.int64)[:, None] * INPUTS + at[None, :]
    of_x = x + row[None, :] * INPUTS + at[:, None]
    if PDL:
        tl.extra.cuda.gdc_wait()
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    for begin in tl.range(0, SHARE, TURN, num_stages=STAGES):
        w = tl.load(of_weight + begin, mask=there[:, None], other=0.0)
        v = tl.load(of_x + begin, mask=(row < rows)[None, :], other=0.0)
        if ROUNDED:  # a float16 holds any FP8 number
            w = w.to(tl.float16)
            v = v.to(tl.float16)
        elif SHORT is not None:
            w = tl.inline_asm_elementwise(SHORT, "=r,=r,r", [w], dtype=v.dtype, is_pure=True, pack=4)
        elif SCALED:
            w = as_operand(w).to(v.dtype)
        total = tl.dot(w, v, total, input_precision="ieee")
    if SCALED:
        total *= tl.load(weight_scale + output, mask=there, other=0.0)[:, None]
    if ROUNDED:
        total *= tl.load(x_scale + row, mask=row < rows, other=0.0)[None, :]
    to = (part * rows + row).to(tl.int64)[None, :] * OUTPUTS + output[:, None]
    tl.store(out + to, total.to(out.dtype.element_ty), mask=there[:, None] & (row < rows)[None, :])


@triton.jit(do_not_specialize=["rows"])
def _skinny_gemm(
    out, x, weight, weight_scale, x_scale, rows,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    TURN: tl.constexpr, SCALED: tl.constexpr, ROUNDED: tl.constexpr, SHORT: tl.constexpr,
    PARTS: tl.constexpr, TILES: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    multiplied_rows(
        out, x, weight, weight_scale, x_scale, rows, tl.program_id(0), tl.program_id(1),
        OUTPUTS, INPUTS, ROWS, COLUMNS, TURN, SCALED, ROUNDED, SHORT, PARTS, TILES, STAGES, PDL,
    )  # fmt: skip


def skinny_gemm(
    x: Tensor,
    weight: Tensor,
    cut: ProductTiling,
    weight_scale: Tensor | None = None,
    x_scale: Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
    pdl: bool = False,
) -> Tensor:
    """[rows, inputs] -> [parts, rows, outputs], in float32 if there are several parts. `pdl` as in Tile.

    `weight_scale`: the scales of an 8-bit weight; `x_scale`: the scales of x if it is quantized
    (quantize_fp8.py) for an FP8 weight, with `dtype` as the output's.
    """
    (rows, inputs), outputs = x.shape, len(weight)
    kind = torch.float32 if cut.parts > 1 else dtype or x.dtype
    out = torch.empty(cut.parts, rows, outputs, dtype=kind, device=x.device)
    tall = cut.rows or max(16, power(rows))
    tiles = triton.cdiv(rows, tall)
    whole = weight.dtype is torch.uint8 and cut.warps < 4
    _skinny_gemm[(triton.cdiv(outputs, cut.outputs) * tiles, cut.parts)](
        out, x, weight, x if weight_scale is None else weight_scale, x if x_scale is None else x_scale, rows,
        OUTPUTS=outputs, INPUTS=inputs, ROWS=tall, COLUMNS=cut.outputs, TURN=cut.inputs,
        SCALED=weight_scale is not None, ROUNDED=x_scale is not None,
        SHORT=SHORT.get(x.dtype) if whole else None, PARTS=cut.parts, TILES=tiles, STAGES=cut.stages,
        PDL=pdl, num_warps=cut.warps, **launch(pdl),
    )  # fmt: skip
    return out


def gemv_tiling(outputs: int, inputs: int, gated: bool) -> ProductTiling:
    """Use whole rows of the weight, as far as they fit in a program."""
    turn = min(power(inputs), 4096)
    if not gated and inputs <= turn:
        for width, most, rows, warps in NARROW_WEIGHTS:
            if turn == width and outputs <= most:
                return ProductTiling(rows, turn, warps)
    held = 8192 if outputs > 8192 else 4096  # elements per program
    return ProductTiling(max(1, held // turn // (2 if gated else 1)), turn, warps=4, stages=3)


def int8_gemv_tiling(outputs: int, inputs: int, gated: bool) -> ProductTiling:
    """Like gemv_tiling, for an 8-bit weight."""
    turn = min(power(inputs), 4096) if inputs <= 4096 else 2048
    rows = 8 if outputs >= 4096 and turn == 4096 and not gated else 4
    return ProductTiling(rows, turn, warps=4 if turn >= 2048 else 2, stages=3)


def skinny_gemm_tiling(rows: int, weight: Tensor) -> ProductTiling | None:
    """None: the shape is not supported, or cuBLAS is faster."""
    outputs, inputs = weight.shape
    if rows > _most_rows(outputs, inputs) or inputs % 128 or weight.itemsize > 2:
        return None
    parts = parts_for(outputs, inputs // 128)
    if rows <= NARROW:
        return ProductTiling(64, 128, warps=4, stages=4, parts=parts)
    return ProductTiling(64, 128 if rows <= 64 else 64, warps=4, stages=3, parts=parts)


def int8_gemm_tiling(rows: int, weight: Tensor) -> ProductTiling | None:
    """Like skinny_gemm_tiling, for an 8-bit weight; None: its inputs are not a multiple of a turn.

    With two warps the compiler uses product instructions that are faster for few rows, with four Hopper's
    own. Integers take longer to convert, which every program with the same weights repeats.
    """
    outputs, inputs = weight.shape
    if inputs % 128:
        return None
    if rows <= (32 if weight.dtype is torch.uint8 else 64):
        tall = min(32, max(8, power(rows)))
        wide, turn = (64, 128) if tall == 32 or inputs % 256 else (32, 256)
        programs = -(-outputs // wide) * -(-rows // tall)
        parts, enough = 1, 8 * ENOUGH if tall < 32 else 3 * ENOUGH
        while programs * parts < enough and inputs // turn % (2 * parts) == 0 and parts < 8:
            parts *= 2
        return ProductTiling(wide, turn, warps=2, stages=3, parts=parts, rows=tall)
    parts = parts_for(outputs, inputs // 128, 4 * ENOUGH if rows <= NARROW else ENOUGH)
    return ProductTiling(64, 128 if rows <= 64 else 64, warps=4, stages=4 if rows <= 64 else 3, parts=parts)


def parts_for(outputs: int, turns: int, enough: int = ENOUGH) -> int:
    """Return how many programs should split the inputs of the same 64 outputs to fill the GPU."""
    parts = 1
    while outputs // 64 * parts < enough and turns % (2 * parts) == 0 and parts < 8:
        parts *= 2
    return parts


def _most_rows(outputs: int, inputs: int) -> int:
    """For smaller weights, a kernel with little startup cost stays faster than cuBLAS up to more rows."""
    if outputs * inputs > SMALL:
        return NARROW
    return 128 if outputs <= 2048 else 64
