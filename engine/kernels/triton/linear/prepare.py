"""What the gated delta rule reads: queries, keys and values after the convolution, decays and betas.

One launch for decodes and prompts. A program has one head of some tokens of a run; another one has their
gates. The convolution's last inputs are read from and stored in the blocks, like the states. The reference is
attention/delta.py.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.api.cache_spec import StateSpec
from engine.attention.state_runs import DeviceRuns
from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.linear.layout import keep_inputs, run_at, run_input, value_column
from engine.kernels.triton.norm.norm import add_up
from engine.kv.store import KVLayer


@triton.jit(do_not_specialize=["chunk"])
def _prepare(
    out, gates, inputs, parts, conv, rates, decay, decay_bias, tables, runs, chunk,
    table_stride, part_stride, rate_stride, eps,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr,
    TAPS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, PADDED_HEADS: tl.constexpr,
    INTERLEAVED: tl.constexpr, PARTS: tl.constexpr, RATE_PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row, first, position, length = run_at(runs, tl.program_id(0))
    nth = tl.program_id(1)
    begin = tl.program_id(2) * chunk
    if begin >= length:
        return
    stop = tl.minimum(begin + chunk, length)
    if nth == 2 * KEY_HEADS + HEADS:
        EACH: tl.constexpr = HEADS // KEY_HEADS
        head = tl.arange(0, PADDED_HEADS)
        is_head = head < HEADS
        beta_at = head // EACH * (2 * EACH) + head % EACH if INTERLEAVED else head
        rate_at = beta_at + (EACH if INTERLEAVED else HEADS)
        speed = tl.exp(tl.load(decay + head, mask=is_head, other=0.0))
        bias = tl.load(decay_bias + head, mask=is_head, other=0.0)
        for nth_token in range(begin, stop):
            token = first + nth_token
            of_token = token * (2 * HEADS)
            beta = add_up(rates, of_token + beta_at, is_head, rate_stride, RATE_PARTS)
            rate = add_up(rates, of_token + rate_at, is_head, rate_stride, RATE_PARTS) + bias
            softplus = tl.maximum(rate, 0.0) + tl.log(1 + tl.exp(-tl.abs(rate)))
            tl.store(gates + of_token + head, tl.exp(-speed * softplus), mask=is_head)
            tl.store(gates + of_token + HEADS + head, tl.sigmoid(beta), mask=is_head)
        return

    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY + HEADS * VALUE
    WIDTH: tl.constexpr = CHANNELS + HEADS * VALUE
    dtype = conv.dtype.element_ty
    at = tl.arange(0, PADDED)
    if nth >= 2 * KEY_HEADS:
        there = at < VALUE
        channel = 2 * KEY_HEADS * KEY + (nth - 2 * KEY_HEADS) * VALUE
        column = value_column(nth - 2 * KEY_HEADS, False, KEY_HEADS, HEADS, KEY, VALUE, INTERLEAVED)
    else:
        there = at < KEY
        channel = nth * KEY
        if INTERLEAVED:
            column = nth % KEY_HEADS * (WIDTH // KEY_HEADS) + nth // KEY_HEADS * KEY
        else:
            column = channel
    table = tables + row * table_stride
    read = tl.load(table + (position - 1) // SIZE, mask=position > 0, other=0).to(tl.int64)
    of_blocks = inputs + channel + at
    # From here, a negative number of tokens leads to the inputs before the run.
    before = of_blocks + (read * (TAPS - 1) + TAPS - 1) * CHANNELS
    of_parts = parts + column + at
    kept = position > 0
    to_end = SIZE - position % SIZE  # tokens until the run's first block is full
    for token in range(begin, stop):
        total = tl.zeros([PADDED], tl.float32)
        for tap in tl.static_range(TAPS):
            value = run_input(
                before, of_parts, token + tap - (TAPS - 1), first, kept, there, part_stride, dtype, WIDTH,
                CHANNELS, PARTS,
            )  # fmt: skip
            total += value * tl.load(conv + (channel + at) * TAPS + tap, mask=there, other=0.0).to(tl.float32)
        total = total * tl.sigmoid(total)
        if nth < 2 * KEY_HEADS:
            total = total / tl.sqrt(tl.sum(total * total, 0) + eps)
            if nth < KEY_HEADS:
                total *= KEY**-0.5
        tl.store(out + (first + token) * CHANNELS + channel + at, total, mask=there)
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


def prepare(
    layer: KVLayer,
    parts: Tensor,
    conv: Tensor,
    rates: Tensor,
    decay: Tensor,
    decay_bias: Tensor,
    runs: DeviceRuns,
    sizes: StateSpec,
    eps: float,
    *,
    interleaved: bool = False,
    pdl: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return queries, keys and values [tokens, channels], decays and betas [tokens, 2, heads], in float32.

    `parts` [parts, tokens, channels + values]: a product in the type of `conv` [channels, taps].
    `rates` [parts, tokens, 2 * heads]: the product of betas and rates. `eps`: of the norms of
    queries and keys. `pdl` as in Tile.
    """
    assert layer.inputs is not None
    tokens = parts.shape[1]
    out = torch.empty(tokens, sizes.channels, dtype=torch.float32, device=parts.device)
    gates = torch.empty(tokens, 2, sizes.heads, dtype=torch.float32, device=parts.device)
    grid = (len(runs.runs), 2 * sizes.key_heads + sizes.heads + 1, triton.cdiv(runs.longest, runs.chunk))
    _prepare[grid](
        out, gates, layer.inputs, parts, conv, rates, decay, decay_bias, runs.tables, runs.runs, runs.chunk,
        runs.tables.stride(0), parts.stride(0), rates.stride(0), eps,
        KEY_HEADS=sizes.key_heads, HEADS=sizes.heads, KEY=sizes.key_dim, VALUE=sizes.value_dim,
        TAPS=sizes.taps, SIZE=layer.block_size, PADDED=power(max(sizes.key_dim, sizes.value_dim)),
        PADDED_HEADS=power(sizes.heads), INTERLEAVED=interleaved, PARTS=len(parts), RATE_PARTS=len(rates),
        PDL=pdl, num_warps=1, **launch(pdl),
    )  # fmt: skip
    return out, gates
