"""Lays the keys and values of contexts out in one piece, where so many queries read them that it pays.

Of a paged cache each thread fetches 16 bytes at a time; of one piece, a unit of its own fetches whole turns.
"""
# mypy: disable-error-code=no-untyped-def
# Triton reads a kernel's annotations as its own, so only what is a constant to it has one.

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from engine.cache.store import KVLayer
from engine.kernels.attention.work import Spans
from engine.kernels.launch import power

AT_ONCE = 4096  # numbers of keys that a program copies


@triton.jit(do_not_specialize=["table_stride"])
def _gather(
    to_keys, to_values, keys, values, tables, spans, table_stride,
    KEY_LINE: tl.constexpr, VALUE_LINE: tl.constexpr, BLOCK: tl.constexpr, TURN: tl.constexpr,
    TOKENS: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
):  # fmt: skip
    span = spans + tl.program_id(1) * 4
    row = tl.load(span).to(tl.int64)
    context = tl.load(span + 1)
    start = tl.load(span + 2).to(tl.int64)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    kept = (token < (context + TURN - 1) // TURN * TURN)[:, None]
    there = token < context
    block = tl.load(tables + row * table_stride + token // BLOCK, mask=there, other=0).to(tl.int64)
    cell = (block * BLOCK + token % BLOCK)[:, None]
    column = tl.arange(0, KEY_PAD)[None, :]
    mask = column < KEY_LINE
    line = tl.load(keys + cell * KEY_LINE + column, mask=there[:, None] & mask, other=0.0)
    tl.store(to_keys + (start + token)[:, None] * KEY_LINE + column, line, mask=kept & mask)
    column = tl.arange(0, VALUE_PAD)[None, :]
    mask = column < VALUE_LINE
    line = tl.load(values + cell * VALUE_LINE + column, mask=there[:, None] & mask, other=0.0)
    tl.store(to_values + (start + token)[:, None] * VALUE_LINE + column, line, mask=kept & mask)


def gather(
    layer: KVLayer, tables: Tensor, spans: Spans, turn: int
) -> tuple[TensorDescriptor, TensorDescriptor]:
    """Keys and values of the rows, 0 behind a context, to be read by turns of a head."""
    spec = layer.spec
    widths = spec.kv_heads * spec.key_dim, spec.kv_heads * spec.value_dim
    keys, values = (layer.keys.new_empty(spans.cells, width) for width in widths)
    tokens = max(1, AT_ONCE // power(max(widths)))
    _gather[(triton.cdiv(spans.longest, tokens), len(spans.table))](
        keys, values, layer.keys, layer.values, tables, spans.table, tables.stride(0),
        KEY_LINE=widths[0], VALUE_LINE=widths[1], BLOCK=layer.block_size, TURN=turn,
        TOKENS=tokens, KEY_PAD=power(widths[0]), VALUE_PAD=power(widths[1]), num_warps=4,
    )  # fmt: skip
    return (
        TensorDescriptor.from_tensor(keys, [turn, spec.key_dim]),
        TensorDescriptor.from_tensor(values, [turn, spec.value_dim]),
    )
