"""The gated delta rule: one launch carries the states of all rows over their tokens, one by one.

It serves decodes and prompts, so a result does not depend on how a row was cut. A program holds some columns
of a head's matrix in registers from a row's first token to its last. If it holds all of them, it may also
norm and gate the head's output.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.api.cache_spec import StateSpec
from engine.attention.state_runs import DeviceRuns
from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.linear.layout import normed_and_gated, run_at
from engine.kernels.triton.padding import padded_rows

COLUMNS = 32  # of a matrix in a program that does not hold a whole one
MOST = 128 * 128  # numbers of a matrix that a program can hold
REGISTERS = 128  # of a thread with a large part of a matrix, so that two programs fit on a multiprocessor


@dataclass(frozen=True, slots=True)
class OutputGate:
    """The norm and the gate of each head's output; the gates are in a product, see layout.py."""

    weight: Tensor  # [value_dim]
    eps: float
    parts: Tensor  # [parts, tokens, channels + values]
    interleaved: bool = False


@triton.jit
def _advance(
    out, state, qkv, gates, tables, runs, norm_weight, parts, table_stride, part_stride, eps,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr,
    SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GATED: tl.constexpr,
    INTERLEAVED: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row, first, position, length = run_at(runs, tl.program_id(0))
    if length == 0:
        return
    head = tl.program_id(1)
    at_key = tl.arange(0, ROWS)
    at_value = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    is_key, is_value = at_key < KEY, at_value < VALUE
    place = at_key[:, None] * VALUE + at_value[None, :]
    there = is_key[:, None] & is_value[None, :]
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY + HEADS * VALUE
    table = tables + row * table_stride
    read = tl.load(table + (position - 1) // SIZE, mask=position > 0, other=0).to(tl.int64)
    matrix = tl.load(
        state + (read * HEADS + head) * KEY * VALUE + place, mask=there & (position > 0), other=0.0
    )
    of_query = qkv + head // (HEADS // KEY_HEADS) * KEY + at_key
    of_value = qkv + 2 * KEY_HEADS * KEY + head * VALUE + at_value
    for at in range(length):
        token = first + at
        query = tl.load(of_query + token * CHANNELS, mask=is_key, other=0.0)
        key = tl.load(of_query + token * CHANNELS + KEY_HEADS * KEY, mask=is_key, other=0.0)
        value = tl.load(of_value + token * CHANNELS, mask=is_value, other=0.0)
        decay = tl.load(gates + token * 2 * HEADS + head)
        beta = tl.load(gates + (token * 2 + 1) * HEADS + head)
        matrix *= decay
        change = (value - tl.sum(matrix * key[:, None], 0)) * beta
        matrix += key[:, None] * change[None, :]
        mixed = tl.sum(matrix * query[:, None], 0)
        if GATED:
            mixed = normed_and_gated(
                mixed, norm_weight, parts, token, head, at_value, is_value, eps, part_stride,
                out.dtype.element_ty, KEY_HEADS, HEADS, KEY, VALUE, INTERLEAVED, PARTS,
            )  # fmt: skip
        tl.store(out + (token * HEADS + head) * VALUE + at_value, mixed, mask=is_value)
        if ((position + at + 1) % SIZE == 0) | (at + 1 == length):
            block = tl.load(table + (position + at) // SIZE).to(tl.int64)
            tl.store(state + (block * HEADS + head) * KEY * VALUE + place, matrix, mask=there)


def advance(
    state: Tensor,
    qkv: Tensor,
    gates: Tensor,
    runs: DeviceRuns,
    sizes: StateSpec,
    size: int,
    gate: OutputGate | None = None,
    *,
    pdl: bool = False,
) -> Tensor:
    """[tokens, channels] and decays and betas [tokens, 2, heads], in float32 -> [tokens, heads, value_dim].

    States are read before each run, and stored when it ends or fills a block of `size`. With a `gate`, the
    result is normed, gated, and in the type of the norm's weight. `pdl` as in Tile.
    """
    tokens, heads, value_dim = len(qkv), sizes.heads, sizes.value_dim
    tall, wide = power(sizes.key_dim), power(value_dim)
    # Few columns a program are faster for a long run, whose tokens come one after another.
    used = gate if runs.single and tall * wide <= MOST else None
    columns = min(wide, COLUMNS) if used is None else wide
    dtype, large = torch.float32 if used is None else used.weight.dtype, tall * columns > MOST // 2
    out = padded_rows(tokens, heads, value_dim, like=qkv, dtype=dtype)
    given = OutputGate(out, 0.0, qkv.unsqueeze(0)) if used is None else used
    _advance[(len(runs.runs), heads, triton.cdiv(value_dim, columns))](
        out, state, qkv, gates, runs.tables, runs.runs, given.weight, given.parts, runs.tables.stride(0),
        given.parts.stride(0), given.eps,
        KEY_HEADS=sizes.key_heads, HEADS=heads, KEY=sizes.key_dim, VALUE=value_dim, SIZE=size, ROWS=tall,
        COLUMNS=columns, GATED=used is not None, INTERLEAVED=given.interleaved, PARTS=len(given.parts),
        PDL=pdl, num_warps=8 if large else 4, **launch(pdl, REGISTERS if large else None),
    )  # fmt: skip
    return out if gate is None or used is not None else norm_gate(out, gate, sizes, pdl=pdl)


@triton.jit
def _norm_gate(
    out, mixed, weight, parts, part_stride, eps,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr,
    COLUMNS: tl.constexpr, INTERLEAVED: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, COLUMNS)
    there = at < VALUE
    line = (token * HEADS + head) * VALUE + at
    value = normed_and_gated(
        tl.load(mixed + line, mask=there, other=0.0), weight, parts, token, head, at, there, eps, part_stride,
        out.dtype.element_ty, KEY_HEADS, HEADS, KEY, VALUE, INTERLEAVED, PARTS,
    )  # fmt: skip
    tl.store(out + line, value, mask=there)


def norm_gate(mixed: Tensor, gate: OutputGate, sizes: StateSpec, *, pdl: bool = False) -> Tensor:
    """[tokens, heads, value_dim] -> the same in the type of the norm's weight."""
    tokens = len(mixed)
    out = padded_rows(tokens, sizes.heads, sizes.value_dim, like=mixed, dtype=gate.weight.dtype)
    _norm_gate[(tokens, sizes.heads)](
        out, mixed, gate.weight, gate.parts, gate.parts.stride(0), gate.eps,
        KEY_HEADS=sizes.key_heads, HEADS=sizes.heads, KEY=sizes.key_dim, VALUE=sizes.value_dim,
        COLUMNS=power(sizes.value_dim), INTERLEAVED=gate.interleaved, PARTS=len(gate.parts), PDL=pdl,
        num_warps=1, **launch(pdl),
    )  # fmt: skip
    return out
