"""Where the numbers of a layer of linear attention are: in a token's product, and in its runs.

A product has queries, keys, values and output gates of all heads, one kind after another, or, if it is
`interleaved`, those of each key head together. What the convolution reads and writes is always ordered by
kind. A run is successive tokens of one request: a row of the block tables, its first token in the step, that
token's position, and how many there are.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import triton
import triton.language as tl

from engine.kernels.triton.norm.norm import add_up

RUN = tl.constexpr(4)  # numbers of a run


@triton.jit
def run_at(runs, nth):
    """Return a run's row of the tables, its first token, the position of that, and its length."""
    at = runs + nth * RUN
    return tl.load(at).to(tl.int64), tl.load(at + 1).to(tl.int64), tl.load(at + 2), tl.load(at + 3)


@triton.jit
def run_input(
    inputs, parts, at, first, kept, there, part_stride, dtype: tl.constexpr, WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """A run's input at a token, or before its first one. `kept`: where those are; without, they are zero."""
    new = add_up(parts, (first + at) * WIDTH, there & (at >= 0), part_stride, PARTS).to(dtype).to(tl.float32)
    return new + tl.load(inputs + at * CHANNELS, mask=there & (at < 0) & kept, other=0.0)


@triton.jit
def keep_inputs(
    blocks, inputs, parts, block, ended, first, kept, there, part_stride, dtype: tl.constexpr,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, PARTS: tl.constexpr,
    MOVED: tl.constexpr,
):  # fmt: skip
    """Store a run's last inputs before `ended` in a block.

    `MOVED`: the block may hold the inputs before the run, which only this program reads. They are moved
    towards the oldest, so none is overwritten before it is read.
    """
    for back in tl.static_range(TAPS - 1):
        value = run_input(
            inputs, parts, ended + back - (TAPS - 1), first, kept, there, part_stride, dtype, WIDTH, CHANNELS,
            PARTS,
        )  # fmt: skip
        if MOVED:
            tl.debug_barrier()
        tl.store(blocks + (block * (TAPS - 1) + back) * CHANNELS, value, mask=there)


@triton.jit
def value_column(
    head, gate: tl.constexpr, KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY: tl.constexpr,
    VALUE: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """The column in a token's product of the first number of a head's values, or of its output gate."""
    if INTERLEAVED:
        EACH: tl.constexpr = HEADS // KEY_HEADS
        inside = 2 * KEY + (EACH * VALUE if gate else 0) + head % EACH * VALUE
        return head // EACH * (2 * KEY + 2 * EACH * VALUE) + inside
    return 2 * KEY_HEADS * KEY + (HEADS * VALUE if gate else 0) + head * VALUE


@triton.jit
def normed_and_gated(
    value, weight, parts, token, head, at, there, eps, part_stride, dtype: tl.constexpr,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr,
    INTERLEAVED: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """A head's output [VALUE], normed and multiplied by the silu of its gate, which is in the product."""
    WIDTH: tl.constexpr = 2 * KEY_HEADS * KEY + 2 * HEADS * VALUE
    column = value_column(head, True, KEY_HEADS, HEADS, KEY, VALUE, INTERLEAVED)
    gate = add_up(parts, token * WIDTH + column + at, there, part_stride, PARTS).to(dtype).to(tl.float32)
    scale = tl.load(weight + at, mask=there, other=0.0).to(tl.float32)
    value = value.to(dtype).to(tl.float32)
    even = (value * tl.rsqrt(tl.sum(value * value, 0) / VALUE + eps)).to(dtype).to(tl.float32)
    scaled = (even * scale).to(dtype).to(tl.float32)
    return (scaled * (gate * tl.sigmoid(gate))).to(dtype)
