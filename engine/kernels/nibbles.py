"""Products with a weight in four bits: number - zero, scaled, with a scale and a zero for a group of inputs.

A decode step of a small batch waits for its weights: a quarter of the bytes should be four times the speed.
Then arithmetic is in the way. Whole numbers become floats without a conversion: their bits are put into the
fraction of a power of two, which is taken away again. So eight lie in a word of 32 bits. A thread reads
four words at once, a quad, 32 inputs of one group; the nth numbers of its words are of four inputs beside
each other (`packed`).

`vector` is for one row: programs stay, and hold their share of x in registers while weights pass. In bfloat16
eight products are summed in pairs of float16, by half as many operations as in float32. `narrow` is for more:
the weight is spread out to x's type in registers, and is one side of a tensor core's product.
"""
# mypy: disable-error-code=no-untyped-def
# Triton reads a kernel's annotations as its own, so only what is a constant to it has one.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.attention.launch import launch
from engine.kernels.attention.tiles import power
from engine.kernels.products import ENOUGH, NARROW, Cut, evened, opened, parts_for

QUAD = 32  # inputs
MAGIC = 0x4B000000  # the bits of 2**23 as a float
WIDTH = 128  # inputs of a turn of `narrow`; a weight's inputs are filled up to whole turns


def packed(numbers: Tensor) -> Tensor:
    """[outputs, width] of 0 to 15 -> words [outputs, width / 8] int32."""
    by_quad = numbers.to(torch.int32).unflatten(1, (-1, 8, 4))  # nth number, word
    words = sum(by_quad[:, :, nth] << 4 * nth for nth in range(8))
    assert isinstance(words, Tensor)
    return words.flatten(1)


def unpacked(words: Tensor) -> Tensor:
    """The way back, uint8."""
    by_quad = words.unflatten(1, (-1, 1, 4)) >> 4 * torch.arange(8, device=words.device)[:, None]
    return (by_quad & 15).to(torch.uint8).flatten(1)


def grid(scale: Tensor, zero: Tensor) -> Tensor:
    """[outputs, groups] each -> both in one number, int32: two of float16."""
    return torch.stack((scale.half(), zero.half()), 2).view(torch.int32).squeeze(2)


@triton.jit
def number(word, magic, NTH: tl.constexpr):
    """As a float. A fraction has 23 bits: the numbers that lie beyond are moved down first.

    `magic` is the bits of 2**23, given when the kernel is launched: of two constants the compiler would make
    two operations.
    """
    AT: tl.constexpr = 4 * NTH if NTH < 5 else 4 * NTH - 12
    if NTH >= 5:
        word = word >> 12
    bits = word & (15 << AT) | (magic - (AT << 23))
    return bits.to(tl.float32, bitcast=True) - (1 << (23 - AT)) * 1.0


@triton.jit
def half(pair, HIGH: tl.constexpr):
    if HIGH:
        pair = pair >> 16
    return pair.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _quads(words, row, quad, there, QUADS: tl.constexpr):
    at = row.to(tl.int64)[:, None, None] * (4 * QUADS) + quad[None, :, None] * 4
    return tl.load(words + at + tl.arange(0, 4)[None, None, :], mask=there[:, :, None], other=0)


@triton.jit
def _apart(x, PADDED: tl.constexpr):
    """[inputs] -> what the nth numbers of the words are multiplied with, [quads, 4], for each n."""
    by_bits = tl.permute(tl.reshape(x, [PADDED, 2, 2, 2, 4]), (0, 4, 1, 2, 3))
    even, odd = tl.split(by_bits)
    even0, even1 = tl.split(even)
    odd0, odd1 = tl.split(odd)
    v0, v4 = tl.split(even0)
    v2, v6 = tl.split(even1)
    v1, v5 = tl.split(odd0)
    v3, v7 = tl.split(odd1)
    return v0, v1, v2, v3, v4, v5, v6, v7


# The eight numbers of a word times eight of x, two at a time, to one float32: $1 is the word, $2 to $5 are x.
# 1024 + n is a float16 whose fraction ends in n; 1024 + 16 n is one that ends in n and four zeros, and $6 and
# $7 make n of it: a sixteenth, and -64.
TIMES = """{
    .reg .b32 ten, h, n, a, w;
    .reg .b16 low, high;
    .reg .f32 one, other;
    mov.b32 ten, 0x64006400;
    lop3.b32 h, $1, 0x000f000f, ten, 0xea;
    sub.rn.f16x2 n, h, ten;
    mul.rn.f16x2 a, n, $2;
    lop3.b32 h, $1, 0x00f000f0, ten, 0xea;
    fma.rn.f16x2 n, h, $6, $7;
    fma.rn.f16x2 a, n, $3, a;
    shr.u32 w, $1, 8;
    lop3.b32 h, w, 0x000f000f, ten, 0xea;
    sub.rn.f16x2 n, h, ten;
    fma.rn.f16x2 a, n, $4, a;
    lop3.b32 h, w, 0x00f000f0, ten, 0xea;
    fma.rn.f16x2 n, h, $6, $7;
    fma.rn.f16x2 a, n, $5, a;
    mov.b32 {low, high}, a;
    cvt.f32.f16 one, low;
    cvt.f32.f16 other, high;
    add.rn.f32 $0, one, other;
}"""


@triton.jit
def _pair(low, high):
    """Two numbers as float16 in one of 32 bits."""
    below = low.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return below | (high.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) << 16)


@triton.jit
def _times(word, x04, x15, x26, x37, asm: tl.constexpr):
    sixteenth = tl.full(x04.shape, 0x2C002C00, tl.int32)[None, :, :]
    less = tl.full(x04.shape, -0x2BFF2C00, tl.int32)[None, :, :]  # -64 twice
    return tl.inline_asm_elementwise(
        asm, "=f,r,r,r,r,r,r,r",
        [word, x04[None, :, :], x15[None, :, :], x26[None, :, :], x37[None, :, :], sixteenth, less],
        dtype=tl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _lines(tile, OUTPUTS: tl.constexpr, LINES: tl.constexpr, GATED: tl.constexpr):
    """The weight's rows of a tile, and which there are; gate and up in turns."""
    line = tile * LINES + tl.arange(0, LINES)
    if GATED:
        return line // 2 + line % 2 * OUTPUTS, line // 2 < OUTPUTS
    return line, line < OUTPUTS


@triton.jit
def _vector(
    out, x, words, grid, scale, residual, eps, magic,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, QUADS: tl.constexpr,
    GROUP: tl.constexpr, LINES: tl.constexpr, PADDED: tl.constexpr,
    NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, SHORT: tl.constexpr, TIMES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    quad = tl.arange(0, PADDED)
    group = quad * 32 // GROUP
    TILES: tl.constexpr = (OUTPUTS * (2 if GATED else 1) + LINES - 1) // LINES
    ROWS: tl.constexpr = LINES // 2 if GATED else LINES
    # What needs nothing of the kernel before it is fetched while that one ends.
    tile = tl.program_id(0)
    row, real = _lines(tile, OUTPUTS, LINES, GATED)
    there = real[:, None] & (quad < QUADS)[None, :]
    word = _quads(words, row, quad, there, QUADS)
    pair = tl.load(
        grid + row.to(tl.int64)[:, None] * (QUADS * 32 // GROUP) + group[None, :], mask=there, other=0
    )
    if EARLY:
        tl.extra.cuda.gdc_wait()

    at = tl.arange(0, PADDED * 32)
    value = tl.load(x + at, mask=at < INPUTS, other=0.0).to(tl.float32)
    if NORM:
        shrink = tl.rsqrt(tl.sum(value * value) / INPUTS + eps)
        by = tl.load(scale + at, mask=at < INPUTS, other=0.0).to(tl.float32)
        value = evened(value, by, shrink, x.dtype.element_ty)
    size = 1.0
    if SHORT:  # the greatest becomes 128 to 256: no sum of eight products passes what a float16 holds
        size = tl.exp2(7 - tl.floor(tl.log2(tl.maximum(tl.max(tl.abs(value)), 1e-30))))
        value *= size
    v0, v1, v2, v3, v4, v5, v6, v7 = _apart(value, PADDED)
    values = tl.sum((v0 + v1) + (v2 + v3) + ((v4 + v5) + (v6 + v7)), 1)
    if SHORT:
        x04 = _pair(v0, v4)
        x15 = _pair(v1, v5)
        x26 = _pair(v2, v6)
        x37 = _pair(v3, v7)
    dtype = x.dtype.element_ty
    for tile in tl.range(tl.program_id(0), TILES, tl.num_programs(0), num_stages=1):
        # The next one's are asked for before this one's are multiplied, as far as the compiler lets them.
        row, real = _lines(tile + tl.num_programs(0), OUTPUTS, LINES, GATED)
        there = real[:, None] & (quad < QUADS)[None, :]
        next_word = _quads(words, row, quad, there, QUADS)
        next_pair = tl.load(
            grid + row.to(tl.int64)[:, None] * (QUADS * 32 // GROUP) + group[None, :], mask=there, other=0
        )
        if SHORT:
            products = _times(word, x04, x15, x26, x37, TIMES)
        else:
            products = number(word, magic, 0) * v0[None, :, :]
            products += number(word, magic, 1) * v1[None, :, :]
            products += number(word, magic, 2) * v2[None, :, :]
            products += number(word, magic, 3) * v3[None, :, :]
            products += number(word, magic, 4) * v4[None, :, :]
            products += number(word, magic, 5) * v5[None, :, :]
            products += number(word, magic, 6) * v6[None, :, :]
            products += number(word, magic, 7) * v7[None, :, :]
        total = (tl.sum(products, 2) - half(pair, True) * values[None, :]) * half(pair, False)
        result = (tl.sum(total, 1) / size).to(dtype)
        if GATED:
            gate, up = tl.split(tl.reshape(result, [ROWS, 2]))
            result = opened(gate, up)
        output = tile * ROWS + tl.arange(0, ROWS)
        if ADD:
            before = tl.load(residual + output, mask=output < OUTPUTS, other=0.0).to(tl.float32)
            result = (before + result.to(tl.float32)).to(dtype)
        tl.store(out + output, result, mask=output < OUTPUTS)
        word = next_word
        pair = next_pair


def vector(
    x: Tensor,
    words: Tensor,
    grid: Tensor,
    *,
    scale: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    residual: Tensor | None = None,
    early: bool = False,
    cut: Cut | None = None,
) -> Tensor:
    """[1, inputs] -> [1, outputs], as products.vector. A cut says rows of the weight, warps and programs."""
    inputs, quads = x.shape[1], words.shape[1] // 4
    outputs = len(words) // 2 if gated else len(words)
    cut = cut or for_vector(quads)
    out = torch.empty(1, outputs, dtype=x.dtype, device=x.device)
    _vector[(min(cut.parts, triton.cdiv(len(words), cut.outputs)),)](
        out, x, words, grid, x if scale is None else scale, x if residual is None else residual, eps, MAGIC,
        OUTPUTS=outputs, INPUTS=inputs, QUADS=quads, GROUP=quads * QUAD // grid.shape[1],
        LINES=cut.outputs, PADDED=power(quads),
        NORM=scale is not None, GATED=gated, ADD=residual is not None,
        SHORT=x.dtype is torch.bfloat16, TIMES=TIMES, EARLY=early, num_warps=cut.warps, **launch(early),
    )  # fmt: skip
    return out


@triton.jit
def _weight(word, by, zero, magic, NTH: tl.constexpr, dtype: tl.constexpr):
    """The nth numbers as weights, rounded to `dtype`; if that is short, in one operation for each."""
    if dtype == tl.float32:
        return (number(word, magic, NTH) - zero) * by
    AT: tl.constexpr = 12 + 4 * NTH if NTH < 2 else 4 * NTH if NTH < 5 else 4 * NTH - 12
    if NTH < 2:
        word = word << 12
    if NTH >= 5:
        word = word >> 12
    bits = word & (15 << AT) | (magic - (AT << 23))
    # What the power of two costs of the number's 24 bits is far behind those that are kept.
    less = -((1 << (23 - AT)) + zero) * by
    return (bits.to(tl.float32, bitcast=True) * by + less).to(dtype)


@triton.jit
def _plain(word, pair, magic, dtype: tl.constexpr):
    """Words [columns, quads, 4] and their grid [columns, quads] -> [columns, inputs] in the inputs' order."""
    by = half(pair, False)[:, :, None]
    zero = half(pair, True)[:, :, None]
    n0 = _weight(word, by, zero, magic, 0, dtype)
    n1 = _weight(word, by, zero, magic, 1, dtype)
    n2 = _weight(word, by, zero, magic, 2, dtype)
    n3 = _weight(word, by, zero, magic, 3, dtype)
    n4 = _weight(word, by, zero, magic, 4, dtype)
    n5 = _weight(word, by, zero, magic, 5, dtype)
    n6 = _weight(word, by, zero, magic, 6, dtype)
    n7 = _weight(word, by, zero, magic, 7, dtype)
    first, second = tl.join(tl.join(n0, n1), tl.join(n2, n3)), tl.join(tl.join(n4, n5), tl.join(n6, n7))
    by_bits = tl.permute(tl.join(first, second), (0, 1, 5, 4, 3, 2))
    return tl.reshape(by_bits, [word.shape[0], word.shape[1] * 32])


@triton.jit(do_not_specialize=["rows"])
def _narrow(
    out, x, words, grid, rows, magic,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, QUADS: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURN: tl.constexpr,
    PARTS: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    part = tl.program_id(1)
    output = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    there = (output < OUTPUTS)[:, None] & tl.full([1, TURN], True, tl.int1)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    SHARE: tl.constexpr = QUADS // PARTS
    of_grid = grid + output.to(tl.int64)[:, None] * (QUADS * 32 // GROUP)
    of_x = x + row.to(tl.int64)[None, :] * INPUTS
    if EARLY:
        tl.extra.cuda.gdc_wait()
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    for begin in tl.range(part * SHARE, (part + 1) * SHARE, TURN, num_stages=STAGES):
        quad = begin + tl.arange(0, TURN)
        word = _quads(words, output, quad, there, QUADS)
        pair = tl.load(of_grid + (quad * 32 // GROUP)[None, :], mask=there, other=0)
        at = begin * 32 + tl.arange(0, TURN * 32)
        mask = (row < rows)[None, :]
        if INPUTS != QUADS * 32:
            mask = mask & (at < INPUTS)[:, None]
        v = tl.load(of_x + at[:, None], mask=mask, other=0.0)
        total = tl.dot(_plain(word, pair, magic, x.dtype.element_ty), v, total, input_precision="ieee")
    to = (part * rows + row).to(tl.int64)[None, :] * OUTPUTS + output[:, None]
    mask = (output < OUTPUTS)[:, None] & (row < rows)[None, :]
    tl.store(out + to, total.to(out.dtype.element_ty), mask=mask)


def narrow(x: Tensor, words: Tensor, grid: Tensor, cut: Cut, *, early: bool = False) -> Tensor:
    """[rows, inputs] -> [parts, rows, outputs], in float32 if parts are several; a cut's inputs are quads."""
    (rows, inputs), outputs, quads = x.shape, len(words), words.shape[1] // 4
    tile = min(128, max(16, power(rows)))
    kind = torch.float32 if cut.parts > 1 else x.dtype
    out = torch.empty(cut.parts, rows, outputs, dtype=kind, device=x.device)
    _narrow[(triton.cdiv(outputs, cut.outputs), cut.parts, triton.cdiv(rows, tile))](
        out, x, words, grid, rows, MAGIC,
        OUTPUTS=outputs, INPUTS=inputs, QUADS=quads, GROUP=quads * QUAD // grid.shape[1],
        ROWS=tile, COLUMNS=cut.outputs, TURN=cut.inputs,
        PARTS=cut.parts, STAGES=cut.stages, EARLY=early, num_warps=cut.warps, **launch(early),
    )  # fmt: skip
    return out


def for_vector(quads: int) -> Cut:
    """A quad of each of a few rows for a thread; programs stay, and take rows until there are none."""
    warps = max(1, min(16, power(quads) // 32))
    return Cut(4 if quads < 128 else 2, quads, warps=warps, parts=ENOUGH * max(1, 16 // warps))


def for_narrow(rows: int, words: Tensor) -> Cut:
    outputs, turns = len(words), words.shape[1] * 8 // WIDTH
    parts = parts_for(outputs, turns, 4 * ENOUGH if rows <= NARROW else ENOUGH)
    return Cut(64, WIDTH // QUAD, warps=4, stages=4, parts=parts)
