"""Mamba-2's states: token by token if most runs have one token, else chunk by chunk, as products.

A program holds some columns of a head's matrix in registers from a run's first token to its last. The
references are in attention/state_space.py.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.api.cache_spec import StateSpec
from engine.attention.state_runs import DeviceRuns
from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.linear.layout import run_at

COLUMNS, WARPS = 32, 4  # of a matrix in a program that computes token by token
LEAST = 16  # rows and columns of a product


class ChunkTile(NamedTuple):
    """What a program of the second kernel has: tokens of a chunk, at most, and columns of a matrix."""

    tokens: int
    columns: int
    warps: int


# Products in float32 need more registers than those in tf32.
TILES = {True: ChunkTile(16, 32, 8), False: ChunkTile(64, 64, 8)}
TALL, OF_TALL = 128, ChunkTile(32, 32, 8)  # more rows of a matrix would not fit beside the others' chunks


@triton.jit
def _advance_space(
    out, state, mixed, gates, skip, tables, runs, table_stride,
    GROUPS: tl.constexpr, HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr, SIZE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
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
    CHANNELS: tl.constexpr = 2 * GROUPS * KEY + HEADS * VALUE
    table = tables + row * table_stride
    read = tl.load(table + (position - 1) // SIZE, mask=position > 0, other=0).to(tl.int64)
    matrix = tl.load(
        state + (read * HEADS + head) * KEY * VALUE + place, mask=there & (position > 0), other=0.0
    )
    of_value = mixed + head * VALUE + at_value
    of_key = mixed + HEADS * VALUE + head // (HEADS // GROUPS) * KEY + at_key
    kept = tl.load(skip + head)
    for at in range(length):
        token = first + at
        value = tl.load(of_value + token * CHANNELS, mask=is_value, other=0.0)
        key = tl.load(of_key + token * CHANNELS, mask=is_key, other=0.0)
        query = tl.load(of_key + token * CHANNELS + GROUPS * KEY, mask=is_key, other=0.0)
        decay = tl.exp(tl.load(gates + token * 2 * HEADS + head))
        step = tl.load(gates + (token * 2 + 1) * HEADS + head)
        matrix = matrix * decay + key[:, None] * (step * value)[None, :]
        found = tl.sum(matrix * query[:, None], 0) + kept * value
        tl.store(out + (token * HEADS + head) * VALUE + at_value, found, mask=is_value)
        if ((position + at + 1) % SIZE == 0) | (at + 1 == length):
            block = tl.load(table + (position + at) // SIZE).to(tl.int64)
            tl.store(state + (block * HEADS + head) * KEY * VALUE + place, matrix, mask=there)


@triton.jit
def _advance_chunks(
    out, state, mixed, gates, skip, tables, runs, table_stride,
    GROUPS: tl.constexpr, HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr, SIZE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
    PDL: tl.constexpr,
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
    CHANNELS: tl.constexpr = 2 * GROUPS * KEY + HEADS * VALUE
    table = tables + row * table_stride
    read = tl.load(table + (position - 1) // SIZE, mask=position > 0, other=0).to(tl.int64)
    matrix = tl.load(
        state + (read * HEADS + head) * KEY * VALUE + place, mask=there & (position > 0), other=0.0
    )
    of_value = mixed + head * VALUE + at_value
    of_key = mixed + HEADS * VALUE + head // (HEADS // GROUPS) * KEY + at_key
    kept = tl.load(skip + head)
    at = tl.arange(0, CHUNK)
    is_before = at[:, None] >= at[None, :]
    begin = -(position % CHUNK)  # of a chunk, from the run's first token
    while begin < length:
        inside = (begin + at >= 0) & (begin + at < length)
        token = tl.where(inside, first + begin + at, 0)
        line = token[:, None] * CHANNELS
        value = tl.load(of_value[None, :] + line, mask=inside[:, None] & is_value[None, :], other=0.0)
        key = tl.load(of_key[None, :] + line, mask=inside[:, None] & is_key[None, :], other=0.0)
        query = tl.load(
            of_key[None, :] + GROUPS * KEY + line, mask=inside[:, None] & is_key[None, :], other=0.0
        )
        log = tl.load(gates + token * 2 * HEADS + head, mask=inside, other=0.0)
        step = tl.load(gates + (token * 2 + 1) * HEADS + head, mask=inside, other=0.0)
        total = tl.cumsum(log, 0)
        whole = tl.sum(log, 0)
        given = value * step[:, None]
        seen = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        seen *= tl.exp(tl.where(is_before, total[:, None] - total[None, :], -float("inf")))
        found = tl.dot(seen, given, input_precision=PRECISION)
        found += tl.dot(query * tl.exp(total)[:, None], matrix, input_precision=PRECISION)
        key *= tl.exp(whole - total)[:, None]
        matrix = matrix * tl.exp(whole) + tl.dot(tl.trans(key), given, input_precision=PRECISION)
        found += kept * value
        tl.store(
            out + (token[:, None] * HEADS + head) * VALUE + at_value[None, :], found,
            mask=inside[:, None] & is_value[None, :],
        )  # fmt: skip
        begin += CHUNK
        ended = position + tl.minimum(begin, length)
        if (ended % SIZE == 0) | (begin >= length):
            block = tl.load(table + (ended - 1) // SIZE).to(tl.int64)
            tl.store(state + (block * HEADS + head) * KEY * VALUE + place, matrix, mask=there)


def advance(
    state: Tensor,
    mixed: Tensor,
    gates: Tensor,
    skip: Tensor,
    runs: DeviceRuns,
    sizes: StateSpec,
    size: int,
    *,
    exact: bool,
    pdl: bool = False,
) -> Tensor:
    """[tokens, channels] and [tokens, 2, heads], in float32 -> [tokens, heads, value_dim].

    States are read before each run, and stored when it ends or fills a block of `size`. `exact`: products of
    chunks are in float32, else in tf32. `pdl` as in Tile.
    """
    out = torch.empty(len(mixed), sizes.heads, sizes.value_dim, dtype=torch.float32, device=mixed.device)
    tall, wide = power(sizes.key_dim), power(sizes.value_dim)
    given = out, state, mixed, gates, skip, runs.tables, runs.runs, runs.tables.stride(0)
    shape = {
        "GROUPS": sizes.key_heads, "HEADS": sizes.heads, "KEY": sizes.key_dim, "VALUE": sizes.value_dim,
        "SIZE": size,
    }  # fmt: skip
    if runs.single:
        columns = min(wide, COLUMNS)
        _advance_space[(len(runs.runs), sizes.heads, triton.cdiv(wide, columns))](
            *given, **shape, ROWS=tall, COLUMNS=columns, PDL=pdl, num_warps=WARPS, **launch(pdl)
        )
    else:
        tile = TILES[exact] if exact or tall <= TALL else OF_TALL
        columns = max(min(wide, tile.columns), LEAST)
        _advance_chunks[(len(runs.runs), sizes.heads, triton.cdiv(wide, columns))](
            *given, **shape, ROWS=max(tall, LEAST), COLUMNS=columns, CHUNK=min(tile.tokens, size),
            PRECISION="ieee" if exact else "tf32", PDL=pdl, num_warps=tile.warps, **launch(pdl),
        )  # fmt: skip
    return out
