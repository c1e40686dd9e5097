"""The gated delta rule: one launch carries the states of all rows over their tokens, one by one.

It serves decodes and prompts, so a result does not depend on how a row was cut. A program holds some columns
of a head's matrix in registers from a row's first token to its last.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 32  # of a matrix in a program


@triton.jit
def _advance(
    out, state, q, k, v, gates, firsts, positions, lengths, reads, saves, blocks, HEADS: tl.constexpr,
    GROUP: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    run, head = tl.program_id(0), tl.program_id(1)
    at_key = tl.arange(0, ROWS)
    at_value = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    is_key, is_value = at_key < KEY, at_value < VALUE
    place = at_key[:, None] * VALUE + at_value[None, :]
    there = is_key[:, None] & is_value[None, :]
    first = tl.load(firsts + run).to(tl.int64)
    position, length = tl.load(positions + run), tl.load(lengths + run)
    read, save = tl.load(reads + run).to(tl.int64), tl.load(saves + run)
    matrix = tl.load(
        state + (read * HEADS + head) * KEY * VALUE + place, mask=there & (position > 0), other=0.0
    )
    for at in range(length):
        token = first + at
        key_at = (token * (HEADS // GROUP) + head // GROUP) * KEY + at_key
        query, key = tl.load(q + key_at, mask=is_key, other=0.0), tl.load(k + key_at, mask=is_key, other=0.0)
        value_at = (token * HEADS + head) * VALUE + at_value
        value = tl.load(v + value_at, mask=is_value, other=0.0)
        decay = tl.load(gates + token * 2 * HEADS + head)
        beta = tl.load(gates + (token * 2 + 1) * HEADS + head)
        matrix *= decay
        change = (value - tl.sum(matrix * key[:, None], 0)) * beta
        matrix += key[:, None] * change[None, :]
        tl.store(out + value_at, tl.sum(matrix * query[:, None], 0), mask=is_value)
        if ((position + at + 1) % SIZE == 0) | (at + 1 == length):
            block = tl.load(blocks + save).to(tl.int64)
            tl.store(state + (block * HEADS + head) * KEY * VALUE + place, matrix, mask=there)
            save += 1


def advance(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, gates: Tensor, where: tuple[Tensor, ...], size: int
) -> Tensor:
    """[tokens, key_heads, key_dim] and [tokens, heads, value_dim], all in float32 -> values.

    `gates`: decays and betas [tokens, 2, heads]. `where`: of each run of tokens, its first token, the
    position of that, its length, the block with the state before it, and where its blocks begin in the last
    tensor: one for each time that it ends or fills a block of `size`. States are read and stored there.
    """
    (heads, value_dim), (key_heads, key_dim) = v.shape[1:], k.shape[1:]
    out = torch.empty_like(v)
    grid = (len(where[0]), heads, triton.cdiv(value_dim, COLUMNS))
    _advance[grid](
        out, state, q, k, v, gates, *where, HEADS=heads, GROUP=heads // key_heads, KEY=key_dim,
        VALUE=value_dim, SIZE=size, ROWS=triton.next_power_of_2(key_dim), COLUMNS=COLUMNS, num_warps=4,
    )  # fmt: skip
    return out
