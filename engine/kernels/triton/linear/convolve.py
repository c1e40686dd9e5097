"""What a state space reads: its inputs after the convolution, the logarithms of decays, and step sizes.

One launch for decodes and prompts. A program has some channels of some tokens of a run; another one has their
step sizes. The convolution's last inputs are read from and stored in the blocks, like the states. The
reference is attention/recurrence.py.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.attention.state_runs import DeviceRuns
from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.linear.layout import keep_inputs, run_at, run_input
from engine.kernels.triton.norm.norm import add_up
from engine.kv.store import KVLayer

TILE = 128  # channels of a program


@dataclass(frozen=True, slots=True)
class StepSizes:
    """How a token's numbers in the product, one for each head, become decays and step sizes."""

    column: int  # of the first one
    decay: Tensor  # [heads]: the logarithms of their rates
    bias: Tensor  # [heads]
    limits: tuple[float, float]


@triton.jit(do_not_specialize=["chunk"])
def _convolve(
    out, gates, inputs, parts, conv, conv_bias, decay, step_bias, tables, runs, chunk,
    table_stride, part_stride, least, most,
    WIDTH: tl.constexpr, COLUMN: tl.constexpr, CHANNELS: tl.constexpr, HEADS: tl.constexpr,
    STEPS: tl.constexpr, TAPS: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr,
    PADDED_HEADS: tl.constexpr, BIASED: tl.constexpr, SILU: tl.constexpr, PARTS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row, first, position, length = run_at(runs, tl.program_id(0))
    begin = tl.program_id(2) * chunk
    if begin >= length:
        return
    stop = tl.minimum(begin + chunk, length)
    dtype = conv.dtype.element_ty
    if tl.program_id(1) * TILE >= CHANNELS:
        head = tl.arange(0, PADDED_HEADS)
        is_head = head < HEADS
        rate = -tl.exp(tl.load(decay + head, mask=is_head, other=0.0))
        bias = tl.load(step_bias + head, mask=is_head, other=0.0)
        for nth in range(begin, stop):
            token = first + nth
            given = add_up(parts, token * WIDTH + STEPS + head, is_head, part_stride, PARTS)
            given = given.to(dtype).to(tl.float32) + bias
            size = tl.maximum(given, 0.0) + tl.log(1 + tl.exp(-tl.abs(given)))
            size = tl.minimum(tl.maximum(size, least), most)
            tl.store(gates + token * 2 * HEADS + head, rate * size, mask=is_head)
            tl.store(gates + token * 2 * HEADS + HEADS + head, size, mask=is_head)
        return

    channel = tl.program_id(1) * TILE + tl.arange(0, TILE)
    there = channel < CHANNELS
    table = tables + row * table_stride
    kept = position > 0
    read = tl.load(table + (position - 1) // SIZE, mask=kept, other=0).to(tl.int64)
    of_blocks = inputs + channel
    # From here, a negative number of tokens leads to the inputs before the run.
    before = of_blocks + (read * (TAPS - 1) + TAPS - 1) * CHANNELS
    of_parts = parts + COLUMN + channel
    to_end = SIZE - position % SIZE  # tokens until the run's first block is full
    for token in range(begin, stop):
        total = tl.zeros([TILE], tl.float32)
        for tap in tl.static_range(TAPS):
            value = run_input(
                before, of_parts, token + tap - (TAPS - 1), first, kept, there, part_stride, dtype, WIDTH,
                CHANNELS, PARTS,
            )  # fmt: skip
            total += value * tl.load(conv + channel * TAPS + tap, mask=there, other=0.0).to(tl.float32)
        if BIASED:
            total += tl.load(conv_bias + channel, mask=there, other=0.0).to(tl.float32)
        if SILU:
            total *= tl.sigmoid(total)
        tl.store(out + (first + token) * CHANNELS + channel, total, mask=there)
        ended = token + 1
        if (ended > to_end) & (((position + ended) % SIZE == 0) | (ended == length)):
            block = tl.load(table + (position + token) // SIZE).to(tl.int64)
            keep_inputs(
                of_blocks, before, of_parts, block, ended, first, kept, there, part_stride, dtype, WIDTH,
                CHANNELS, TAPS, PARTS, False,
            )  # fmt: skip
    if begin == 0:
        ended = tl.minimum(length, to_end)
        block = tl.load(table + position // SIZE).to(tl.int64)
        keep_inputs(
            of_blocks, before, of_parts, block, ended, first, kept, there, part_stride, dtype, WIDTH,
            CHANNELS, TAPS, PARTS, True,
        )  # fmt: skip


def convolve(
    layer: KVLayer,
    parts: Tensor,
    column: int,
    conv: Tensor,
    bias: Tensor | None,
    runs: DeviceRuns,
    steps: StepSizes | None = None,
    *,
    activated: bool = True,
    pdl: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the convolution's outputs [tokens, channels], and gates [tokens, 2, heads], in float32.

    `parts` [parts, tokens, width]: a product in the type of `conv` [channels, taps], whose inputs begin at
    `column`. Gates are only computed with `steps`. `pdl` as in Tile.
    """
    sizes = layer.spec.state
    assert layer.inputs is not None and sizes is not None
    tokens, width = parts.shape[1:]
    out = torch.empty(tokens, sizes.channels, dtype=torch.float32, device=parts.device)
    gates = torch.empty(tokens, 2, sizes.heads, dtype=torch.float32, device=parts.device)
    given = StepSizes(0, out, out, (0.0, 0.0)) if steps is None else steps
    tiles = triton.cdiv(sizes.channels, TILE) + (steps is not None)
    _convolve[(len(runs.runs), tiles, triton.cdiv(runs.longest, runs.chunk))](
        out, gates, layer.inputs, parts, conv, conv if bias is None else bias, given.decay, given.bias,
        runs.tables, runs.runs, runs.chunk, runs.tables.stride(0), parts.stride(0), *given.limits,
        WIDTH=width, COLUMN=column, CHANNELS=sizes.channels, HEADS=sizes.heads, STEPS=given.column,
        TAPS=sizes.taps, SIZE=layer.block_size, TILE=TILE, PADDED_HEADS=power(sizes.heads),
        BIASED=bias is not None, SILU=activated, PARTS=len(parts), PDL=pdl, num_warps=1, **launch(pdl),
    )  # fmt: skip
    return out, gates
