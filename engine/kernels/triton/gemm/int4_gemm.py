"""Products of up to a few hundred rows with a 4-bit weight: (number - 8) * scale + offset, by groups.

The numbers may also be 4-bit floats, whose scales are bytes as in the checkpoint: e4m3 for 16 inputs each
(nvfp4), or exponents for 32 (mxfp4). A float times its scale is exact in 16 bits; what else scales an output
is multiplied last, in float32.

A decode step of a small batch is bound by reading weights: a quarter of the bytes should be four times as
fast, unless arithmetic or copies become the bottleneck. So the numbers are stored in the order the kernel
reads them: a program's share is one contiguous piece, which is prefetched to shared memory and goes from
there to the registers that the tensor cores read. There the numbers become floats, two per instruction: their
bits are put into the fraction of a power of two, which is then subtracted (exact), and one more instruction
scales and rounds.

A unit is 128 inputs of an output: 32 words of 16 bits. The nth 4 bits of the words are 32 adjacent inputs, so
that they form a product's operand without reordering.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.gemm.tma_gemm import Tiling
from engine.kernels.triton.launch import launch, power

UNIT = 128  # inputs
TILE = 64  # outputs per tile of the layout; the kernels hard-code it
TALL = 64  # most rows of a program
BROAD = 2**26  # weights of at least this many numbers have enough programs that each can do more


def pack_int4(numbers: Tensor) -> Tensor:
    """Pack [outputs, width] of 0 to 15 to words [tiles, units, TILE, 32] int16; outputs are padded."""
    numbers = F.pad(numbers, (0, 0, 0, -len(numbers) % TILE))
    four = numbers.view(-1, TILE, numbers.shape[1] // UNIT, 4, UNIT // 4).to(torch.int16).unbind(3)
    words = four[0] | four[1] << 4 | four[2] << 8 | four[3] << 12
    return words.transpose(1, 2).contiguous()


def unpack_int4(words: Tensor) -> Tensor:
    """Invert pack_int4, in uint8, including the padding."""
    by_four = words.transpose(1, 2).unsqueeze(3) >> 4 * torch.arange(4, device=words.device)[:, None]
    return (by_four & 15).to(torch.uint8).flatten(2).flatten(0, 1)


def scale_grid(scale: Tensor, zero: Tensor, dtype: torch.dtype) -> Tensor:
    """Pack scale and offset [outputs, groups] as two numbers of `dtype` in an int32: [groups, outputs]."""
    both = torch.stack((scale, (8 - zero) * scale), 2).to(dtype)
    return F.pad(both.view(torch.int32).squeeze(2).T, (0, -len(scale) % TILE)).contiguous()


def byte_grid(scale: Tensor) -> Tensor:
    """Pack bytes [outputs, groups], four adjacent groups to a number: uint32 [groups / 4, outputs]."""
    return (
        F.pad(scale.contiguous().view(torch.int32).T, (0, -len(scale) % TILE)).contiguous().view(torch.uint32)
    )


def _floats(kind: str, power: str, one: str, less: str) -> str:
    """Assembly for $0 to $3: the four numbers of each half of word $4, times $5, $9, ..., plus $7, $11, ....

    `power`: the float whose fraction a number is put into, twice; `less`: minus the sum of that and 8. The
    subtraction is an fma with one, as GPUs before Hopper have no bfloat16 addition.
    """
    each = """
        shr.u32 n, $4, {bits};
        lop3.b32 n, n, 0x000f000f, {power}, 0xea;
        fma.rn.{kind} n, n, one, less;
        fma.rn.{kind} ${nth}, n, ${scale}, ${offset};"""
    lines = (
        each.format(bits=4 * nth, power=power, kind=kind, nth=nth, scale=5 + 4 * nth, offset=7 + 4 * nth)
        for nth in range(4)
    )
    return f"{{ .reg .b32 n, one, less; mov.b32 one, {one}; mov.b32 less, {less};" + "".join(lines) + "}"


FLOATS = {
    torch.bfloat16: _floats("bf16x2", "0x43004300", "0x3f803f80", "0xc308c308"),  # 128
    torch.float16: _floats("f16x2", "0x64006400", "0x3c003c00", "0xe408e408"),  # 1024
}


def _small_floats(kind: str, place: int, power: str) -> str:
    """Assembly like FLOATS, for the four 4-bit floats of each half of word $4.

    Exponent and fraction of a number go to bit `place` of a larger float, the sign to the highest bit. That
    float, which may be subnormal, is `power` times too small, whose bits are given twice.
    """
    text = "{ .reg .b32 n, sign, none, power; mov.b32 none, 0; mov.b32 power, " + power + ";"
    for nth in range(4):
        by = place - 4 * nth
        text += f"{'shl.b32' if by >= 0 else 'shr.u32'} n, $4, {abs(by)};"
        text += f"shl.b32 sign, $4, {12 - 4 * nth};"
        text += "lop3.b32 sign, sign, 0x80008000, none, 0xea;"
        text += f"lop3.b32 n, n, {7 << place | 7 << place + 16}, sign, 0xea;"
        text += f"fma.rn.{kind} n, n, power, none; fma.rn.{kind} ${nth}, n, ${5 + 4 * nth}, ${7 + 4 * nth};"
    return text + "}"


SMALL_FLOATS = {
    torch.bfloat16: _small_floats("bf16x2", 6, "0x7e807e80"),  # 2**126
    torch.float16: _small_floats("f16x2", 9, "0x74007400"),  # 2**14
}
_FLOATS_OPERANDS = tl.constexpr(",".join(["=r"] * 4 + ["r"] * 17))
_TWICE = tl.constexpr("{ prmt.b32 $0, $2, 0, 0x1010; prmt.b32 $1, $2, 0, 0x3232; }")


@triton.jit
def _of_group(grid):
    """Load the scale and offset of each output in the form of tensor core operands: twice in 32 bits."""
    pair = tl.load(grid)
    scale, offset = tl.inline_asm_elementwise(
        _TWICE, "=r,=r,r", [pair], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
    )
    return scale[:, None], offset[:, None]


@triton.jit
def scale_of_byte(four, nth, FOUR: tl.constexpr):
    """The nth of four scales of `FOUR` inputs, bytes without a sign, in float32."""
    byte = ((four >> 8 * nth) & 255).to(tl.int32)
    if FOUR == 64:  # e4m3, as the middle bits of a float that is 2**120 times too small
        value = (byte << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36
    else:  # an exponent; 2**-127 is half of the smallest normal float
        value = tl.maximum(byte << 23, 1 << 22).to(tl.float32, bitcast=True)
    return value


@triton.jit
def _of_byte(four, nth: tl.constexpr, dtype: tl.constexpr, FOUR: tl.constexpr):
    """The nth scale of each output twice in 32 bits, [outputs, 1]."""
    short = scale_of_byte(four, nth, FOUR).to(dtype).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return ((short << 16) | short)[:, None]


@triton.jit
def _of_piece(grid, at, nth: tl.constexpr, ALL: tl.constexpr, GROUP: tl.constexpr, dtype: tl.constexpr):
    """The scales and offsets of the nth 32 inputs of a unit, [outputs, 1 or 32]."""
    pairs = grid + (at + 32 * nth) // GROUP * ALL
    if grid.dtype.element_ty != tl.uint32:
        scale, offset = _of_group(pairs)
    else:
        four = tl.load(pairs)
        if GROUP == 64:
            scale = _of_byte(four, nth % 2 * 2, dtype, GROUP)
            second = _of_byte(four, nth % 2 * 2 + 1, dtype, GROUP)
            scale = tl.where(tl.arange(0, 32)[None, :] < 16, scale, second)
        else:
            scale = _of_byte(four, nth, dtype, GROUP)
        offset = tl.zeros_like(scale)
    return scale, offset


@triton.jit
def floats_of_unit(
    word, grid, at, x, ALL: tl.constexpr, GROUP: tl.constexpr, FLOATS: tl.constexpr
):  # fmt: skip
    """The weights of a unit whose first input is `at`, in four pieces of 32, in x's dtype.

    `grid`: of the outputs.
    """
    dtype = x.dtype.element_ty
    BYTES: tl.constexpr = grid.dtype.element_ty == tl.uint32
    scale0, offset0 = _of_piece(grid, at, 0, ALL, GROUP, dtype)
    scale1, offset1 = scale0, offset0
    if BYTES or GROUP % 64 != 0:
        scale1, offset1 = _of_piece(grid, at, 1, ALL, GROUP, dtype)
    scale2, offset2 = scale0, offset0
    if BYTES or GROUP % 128 != 0:
        scale2, offset2 = _of_piece(grid, at, 2, ALL, GROUP, dtype)
    scale3, offset3 = scale2, offset2
    if BYTES or GROUP % 64 != 0:
        scale3, offset3 = _of_piece(grid, at, 3, ALL, GROUP, dtype)
    return tl.inline_asm_elementwise(
        FLOATS, _FLOATS_OPERANDS,
        [word, scale0, offset0, scale1, offset1, scale2, offset2, scale3, offset3],
        dtype=(dtype, dtype, dtype, dtype), is_pure=True, pack=2,
    )  # fmt: skip


@triton.jit
def scaled_outputs(total, factor, output, there):
    """Multiply the sums [outputs, rows] by what scales each whole output."""
    return total * tl.load(factor + output, mask=there, other=0.0)[:, None]


@triton.jit(do_not_specialize=["rows"])
def _int4_gemm(
    out, x, words, grid, factor, rows,
    OUTPUTS: tl.constexpr, ALL: tl.constexpr, INPUTS: tl.constexpr, UNITS: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURN: tl.constexpr, PARTS: tl.constexpr, TILES: tl.constexpr,
    STAGES: tl.constexpr, FLOATS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    # Programs that read the same weights with other rows are adjacent.
    output = tl.program_id(0) // TILES * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(0) % TILES * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    SHARE: tl.constexpr = UNITS // PARTS
    n = tl.arange(0, 32)
    of_words = words + (output // 64).to(tl.int64)[:, None] * (UNITS * 64 * 32)
    of_words += (output % 64 * 32)[:, None] + n[None, :]
    of_x = x + row.to(tl.int64)[None, :] * INPUTS + n[:, None]
    there = (row < rows)[None, :]
    if PDL:
        tl.extra.cuda.gdc_wait()
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    for begin in tl.range(part * SHARE, (part + 1) * SHARE, TURN, num_stages=STAGES):
        for nth in tl.static_range(TURN):
            unit = begin + nth
            at = unit * 128
            word = tl.load(of_words + unit * (64 * 32))
            w0, w1, w2, w3 = floats_of_unit(word, grid + output, at, x, ALL, GROUP, FLOATS)
            x0 = tl.load(of_x + at, mask=_fits(there, at + n, INPUTS, UNITS), other=0.0)
            x1 = tl.load(of_x + (at + 32), mask=_fits(there, at + 32 + n, INPUTS, UNITS), other=0.0)
            x2 = tl.load(of_x + (at + 64), mask=_fits(there, at + 64 + n, INPUTS, UNITS), other=0.0)
            x3 = tl.load(of_x + (at + 96), mask=_fits(there, at + 96 + n, INPUTS, UNITS), other=0.0)
            total = tl.dot(w0, x0, total)
            total = tl.dot(w1, x1, total)
            total = tl.dot(w2, x2, total)
            total = tl.dot(w3, x3, total)
    if factor is not None:
        total = scaled_outputs(total, factor, output, output < OUTPUTS)
    to = (part * rows + row).to(tl.int64)[None, :] * OUTPUTS + output[:, None]
    tl.store(out + to, total.to(out.dtype.element_ty), mask=there & (output < OUTPUTS)[:, None])


@triton.jit
def _fits(there, at, INPUTS: tl.constexpr, UNITS: tl.constexpr):
    if INPUTS != UNITS * 128:
        there = there & (at < INPUTS)[:, None]
    return there


def int4_gemm(
    x: Tensor,
    words: Tensor,
    grid: Tensor,
    outputs: int,
    how: Tiling,
    factor: Tensor | None = None,
    *,
    pdl: bool = False,
) -> Tensor:
    """[rows, inputs] -> [parts, rows, outputs], in float32 if there are several parts. `pdl` as in Tile.

    x must have the dtype of the grid. If that holds bytes, the numbers are floats.
    `factor`: of each output, in float32.
    """
    (rows, inputs), (tiles, units) = x.shape, words.shape[:2]
    kind = torch.float32 if how.parts > 1 else x.dtype
    out = torch.empty(how.parts, rows, outputs, dtype=kind, device=x.device)
    high = triton.cdiv(rows, how.rows)
    floats = SMALL_FLOATS if grid.dtype is torch.uint32 else FLOATS
    _int4_gemm[(tiles * TILE // how.outputs * high, how.parts)](
        out, x, words, grid, factor, rows,
        OUTPUTS=outputs, ALL=tiles * TILE, INPUTS=inputs, UNITS=units, GROUP=units * UNIT // len(grid),
        ROWS=how.rows, COLUMNS=how.outputs, TURN=how.inputs // UNIT, PARTS=how.parts, TILES=high,
        STAGES=how.stages, FLOATS=floats[x.dtype], PDL=pdl, num_warps=how.warps, **launch(pdl),
    )  # fmt: skip
    return out


def int4_gemm_tiling(rows: int, words: Tensor) -> Tiling:
    """Choose a tiling with one or two warps.

    With four, the compiler uses other product instructions, whose operands take a slower path. The parts are
    few enough that adding them up costs less than they save.
    """
    tiles, units = words.shape[:2]
    tall = min(TALL, max(8, power(rows)))
    broad = words.numel() * 4 >= BROAD
    turn = 1 if broad or tall == TALL or units % 2 else 2
    programs = tiles * -(-rows // tall)
    parts, enough = 1, 1024 if tall <= 16 else 512
    while programs * parts < enough and units % (2 * parts * turn) == 0 and parts < 8:
        parts *= 2
    if tall == 8 and not broad:
        return Tiling(tall, TILE // 2, turn * UNIT, warps=1, stages=3, parts=parts)
    stages = 4 if broad and tall <= 16 else 3
    return Tiling(tall, TILE, turn * UNIT, warps=2, stages=stages, parts=parts)
