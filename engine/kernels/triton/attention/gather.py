"""Copies the keys and values of contexts to contiguous memory, if enough queries read them to pay off.

From a paged cache each thread loads 16 bytes at a time; from contiguous memory, TMA loads whole tiles. A
compressed cache is dequantized to the queries' dtype in the same pass, once for all queries.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from engine.kernels.triton.attention.fours import GROUP, numbers_of
from engine.kernels.triton.attention.work_plan import Spans
from engine.kernels.triton.launch import power
from engine.kv.store import KVLayer

AT_ONCE = 4096  # key elements that a program copies


@triton.jit
def _copy(
    to, of, scales, at, cell, head, there, kept,
    HEADS: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, PAD)[None, :]
    mask = column < DIM
    line = tl.load(of + (cell * HEADS + head)[:, None] * DIM + column, mask=there[:, None] & mask, other=0.0)
    if PACKED:
        by = tl.load(scales + cell * HEADS + head, mask=there, other=0.0).to(tl.float32)
        line = line.to(tl.float32) * by[:, None]
    line = line.to(to.dtype.element_ty)
    tl.store(to + (at * HEADS + head)[:, None] * DIM + column, line, mask=kept[:, None] & mask)


@triton.jit
def rebuilt(
    of, scales, channels, channel_scales, cell, group, head, there,
    HEADS: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Two halves of each cell's numbers in float32, each padded to PAD.

    `group`: the group of each token. With CHANNELS, numbers are distances from its centers.
    """
    HALF: tl.constexpr = DIM // 2
    column = tl.arange(0, PAD)[None, :]
    mask = column < HALF
    fours = tl.load(of + (cell * HEADS + head)[:, None] * HALF + column, mask=there[:, None] & mask, other=0)
    low, high = numbers_of(fours, tl.float32)
    by = tl.load(scales + cell * HEADS + head, mask=there, other=0.0).to(tl.float32)[:, None]
    low *= by
    high *= by
    if CHANNELS:
        of_scales = channel_scales + (group * HEADS + head) * 2
        center_by = tl.load(of_scales, mask=there, other=0.0)[:, None]
        spread_by = tl.load(of_scales + 1, mask=there, other=0.0)[:, None]
        center = channels + (group * HEADS + head)[:, None] * (2 * DIM) + column
        known = there[:, None] & mask
        low = low * (tl.load(center + DIM, mask=known, other=0).to(tl.float32) * spread_by)
        high = high * (tl.load(center + DIM + HALF, mask=known, other=0).to(tl.float32) * spread_by)
        low += tl.load(center, mask=known, other=0).to(tl.float32) * center_by
        high += tl.load(center + HALF, mask=known, other=0).to(tl.float32) * center_by
    return low, high


@triton.jit
def _copy_fours(
    to, of, scales, channels, channel_scales, at, cell, group, head, there, kept,
    HEADS: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    low, high = rebuilt(
        of, scales, channels, channel_scales, cell, group, head, there, HEADS, DIM, PAD // 2, CHANNELS
    )
    HALF: tl.constexpr = DIM // 2
    column = tl.arange(0, PAD // 2)[None, :]
    mask = column < HALF
    line = to + (at * HEADS + head)[:, None] * DIM + column
    tl.store(line, low.to(to.dtype.element_ty), mask=kept[:, None] & mask)
    tl.store(line + HALF, high.to(to.dtype.element_ty), mask=kept[:, None] & mask)


@triton.jit(do_not_specialize=["table_stride"])
def _gather(
    to_keys, to_values, keys, values, key_scales, value_scales, channels, channel_scales, tables, spans,
    table_stride,
    HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK: tl.constexpr,
    TURN: tl.constexpr, TOKENS: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    PACKED: tl.constexpr, FOURS: tl.constexpr,
):  # fmt: skip
    span = spans + tl.program_id(1) * 4
    head = tl.program_id(2)
    row = tl.load(span).to(tl.int64)
    context = tl.load(span + 1)
    start = tl.load(span + 2).to(tl.int64)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    kept = token < (context + TURN - 1) // TURN * TURN
    there = token < context
    block = tl.load(tables + row * table_stride + token // BLOCK, mask=there, other=0).to(tl.int64)
    cell = block * BLOCK + token % BLOCK
    at = start + token
    if FOURS:
        group = cell // GROUP
        _copy_fours(
            to_keys, keys, key_scales, channels, channel_scales, at, cell, group, head, there, kept,
            HEADS, KEY_DIM, KEY_PAD, True,
        )  # fmt: skip
        _copy_fours(
            to_values, values, value_scales, channels, channel_scales, at, cell, group, head, there, kept,
            HEADS, VALUE_DIM, VALUE_PAD, False,
        )  # fmt: skip
    else:
        _copy(to_keys, keys, key_scales, at, cell, head, there, kept, HEADS, KEY_DIM, KEY_PAD, PACKED)
        _copy(
            to_values, values, value_scales, at, cell, head, there, kept, HEADS, VALUE_DIM, VALUE_PAD, PACKED
        )


def gather(
    layer: KVLayer, tables: Tensor, spans: Spans, turn: int, dtype: torch.dtype
) -> tuple[TensorDescriptor, TensorDescriptor]:
    """Return the rows' keys and values in `dtype`, as tiles of `turn` keys of a head, zero-padded."""
    spec, packed = layer.spec, layer.key_scales is not None
    widths = spec.kv_heads * spec.key_dim, spec.kv_heads * spec.value_dim
    keys, values = (layer.keys.new_empty(spans.cells, width, dtype=dtype) for width in widths)
    # An uncompressed token is copied as one head; compressed heads each have a scale.
    heads = spec.kv_heads if packed else 1
    key_dim, value_dim = (width // heads for width in widths)
    tokens = max(1, AT_ONCE // power(max(key_dim, value_dim)))
    _gather[(triton.cdiv(spans.longest, tokens), len(spans.table), heads)](
        keys, values, layer.keys, layer.values, layer.key_scales, layer.value_scales,
        layer.channels, layer.channel_scales, tables, spans.table, tables.stride(0),
        HEADS=heads, KEY_DIM=key_dim, VALUE_DIM=value_dim, BLOCK=layer.block_size, TURN=turn,
        TOKENS=tokens, KEY_PAD=power(key_dim), VALUE_PAD=power(value_dim), PACKED=packed,
        FOURS=layer.channels is not None, num_warps=4,
    )  # fmt: skip
    return (
        TensorDescriptor.from_tensor(keys, [turn, spec.key_dim]),
        TensorDescriptor.from_tensor(values, [turn, spec.value_dim]),
    )
