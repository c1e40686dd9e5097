"""Products of each head with a weight of its own, which latent attention has before and after it.

`by_head` makes values from mixed latents. `absorb` projects queries to latents and, in the same launch, does
all else before attention: it rotates, norms the step's latents, and writes them to the cache.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.norm.norm import add_up, norm_scaled
from engine.kernels.triton.padding import padded_rows
from engine.kv.store import KVLayer

NARROW = 16  # rows of the smallest tensor core product
FEW = 32  # up to this many rows, a program multiplies all inputs at once
WHOLE = 8192  # numbers of a weight that a program then holds
ALONE = 64  # outputs of a program for one row
TALL = (64, 128, 64, 3)  # for more rows: rows, outputs and inputs of a tile, and stages


@triton.jit
def _multiply(
    out, x, weight, row, tokens, column, x_part, x_token, out_token, w_input, w_output,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, TURN: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Multiply a tile, of one head. If it takes one turn, the weight is read before the wait."""
    at = tl.arange(0, TURN)
    dtype = weight.dtype.element_ty
    there, fits = (row < tokens)[:, None], (column < OUTPUTS)[None, :]
    of_columns = weight + column[None, :] * w_output
    given = x + row.to(tl.int64)[:, None] * x_token
    if TURN >= INPUTS:
        inside = at < INPUTS
        w = tl.load(of_columns + at[:, None] * w_input, mask=inside[:, None] & fits, other=0.0)
        if PDL:
            tl.extra.cuda.gdc_wait()
        value = add_up(given, at[None, :], there & inside[None, :], x_part, PARTS).to(dtype)
        total = tl.dot(value, w, input_precision="ieee")
    else:
        if PDL:
            tl.extra.cuda.gdc_wait()
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for begin in tl.range(0, INPUTS, TURN, num_stages=STAGES):
            here = begin + at
            inside = here < INPUTS
            w = tl.load(of_columns + here[:, None] * w_input, mask=inside[:, None] & fits, other=0.0)
            value = add_up(given, here[None, :], there & inside[None, :], x_part, PARTS).to(dtype)
            total = tl.dot(value, w, total, input_precision="ieee")
    where = row.to(tl.int64)[:, None] * out_token + column[None, :]
    tl.store(out + where, total.to(dtype), mask=there & fits)


@triton.jit
def _by_head(
    out, x, weight, tokens, x_part, x_token, x_head, out_token, w_head, w_input, w_output,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, TURN: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    head = tl.program_id(0)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    _multiply(
        out + head * OUTPUTS, x + head * x_head, weight + head.to(tl.int64) * w_head, row, tokens, column,
        x_part, x_token, out_token, w_input, w_output,
        INPUTS, OUTPUTS, PARTS, ROWS, COLUMNS, TURN, STAGES, PDL,
    )  # fmt: skip


@triton.jit
def _turned(
    x, at, other, mask, stride, cos, sin, PARTS: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """Rotate numbers by their position's angle; `other`: those that they are rotated with."""
    value = add_up(x, at, mask, stride, PARTS).to(dtype)
    pair = add_up(x, other, mask, stride, PARTS).to(dtype)
    value = (value.to(tl.float32) * cos).to(dtype)
    return (value.to(tl.float32) + pair.to(tl.float32) * sin).to(dtype)


@triton.jit
def _absorb(
    out, cells, q, latents, weight, norm_weight, rope, positions, places, eps, tokens,
    q_part, q_token, q_head, latent_part, latent_token, w_head, w_input, w_output,
    HEADS: tl.constexpr, UNROTATED: tl.constexpr, ROTATED: tl.constexpr, RANK: tl.constexpr,
    ROTATED_PAD: tl.constexpr, RANK_PAD: tl.constexpr, INTERLEAVED: tl.constexpr, Q_PARTS: tl.constexpr,
    PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURN: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    head = tl.program_id(0)
    first = tl.program_id(2) * ROWS
    row = first + tl.arange(0, ROWS)
    WIDTH: tl.constexpr = RANK + ROTATED
    if tl.program_id(1) * COLUMNS < RANK:
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        _multiply(
            out + head * WIDTH, q + head * q_head, weight + head.to(tl.int64) * w_head, row, tokens, column,
            q_part, q_token, HEADS * WIDTH, w_input, w_output,
            UNROTATED, RANK, Q_PARTS, ROWS, COLUMNS, TURN, STAGES, PDL,
        )  # fmt: skip
    else:  # the rotated numbers of the tile's queries, and the latents of some of its tokens
        dtype = out.dtype.element_ty
        at = tl.arange(0, ROTATED_PAD)
        other = at ^ 1 if INTERLEAVED else (at + ROTATED // 2) % ROTATED
        at_rank = tl.arange(0, RANK_PAD)
        in_rank = at_rank < RANK
        mask = (row < tokens)[:, None] & (at < ROTATED)[None, :]
        position = tl.load(positions + row, mask=row < tokens, other=0)
        angles = rope + position[:, None] * (2 * ROTATED) + at[None, :]
        cos = tl.load(angles, mask=mask, other=1.0).to(tl.float32)
        sin = tl.load(angles + ROTATED, mask=mask, other=0.0).to(tl.float32)
        scale = tl.load(norm_weight + at_rank, mask=in_rank, other=0.0).to(tl.float32)
        if PDL:
            tl.extra.cuda.gdc_wait()
        of_rows = q + row.to(tl.int64)[:, None] * q_token + head * q_head + UNROTATED
        query = _turned(of_rows, at[None, :], other[None, :], mask, q_part, cos, sin, Q_PARTS, dtype)
        line = (row.to(tl.int64)[:, None] * HEADS + head) * WIDTH + RANK
        tl.store(out + line + at[None, :], query, mask=mask)
        for nth in range(head, tl.minimum(ROWS, tokens - first), HEADS):
            token = (first + nth).to(tl.int64)
            place = tl.load(places + token)
            of_token = latents + token * latent_token
            latent = add_up(of_token, at_rank, in_rank, latent_part, PARTS).to(dtype)
            wide = latent.to(tl.float32)
            even = wide * tl.rsqrt(tl.sum(wide * wide) / RANK + eps)
            cell = cells + place * WIDTH
            normed = norm_scaled(even, scale, norm_weight, dtype)
            tl.store(cell + at_rank, normed, mask=in_rank & (place >= 0))
            of_angles = rope + tl.load(positions + token) * (2 * ROTATED) + at
            inside = at < ROTATED
            key_cos = tl.load(of_angles, mask=inside, other=1.0).to(tl.float32)
            key_sin = tl.load(of_angles + ROTATED, mask=inside, other=0.0).to(tl.float32)
            of_key = of_token + RANK
            key = _turned(of_key, at, other, inside, latent_part, key_cos, key_sin, PARTS, dtype)
            tl.store(cell + RANK + at, key, mask=inside & (place >= 0))


def by_head(x: Tensor, weight: Tensor, *, pdl: bool = False) -> Tensor:
    """[tokens, heads, inputs] with [heads, inputs, outputs] -> [tokens, heads, outputs].

    Numbers of a head are adjacent in `x`. The weight may be transposed.
    """
    tokens, heads, inputs = x.shape
    outputs = weight.shape[2]
    out = padded_rows(tokens, heads, outputs, like=weight)
    how = _tile(tokens, inputs, outputs, 1, weight)
    _by_head[(heads, triton.cdiv(outputs, how["COLUMNS"]), triton.cdiv(tokens, how["ROWS"]))](
        out, x, weight, tokens, 0, x.stride(0), x.stride(1), out.stride(0), *weight.stride(),
        INPUTS=inputs, OUTPUTS=outputs, PARTS=1, **how, PDL=pdl, num_warps=4, **launch(pdl),
    )  # fmt: skip
    return out


def absorb(
    q: Tensor,
    latents: Tensor,
    weight: Tensor,
    layer: KVLayer,
    norm_weight: Tensor,
    eps: float,
    rope: Tensor,
    positions: Tensor,
    places: Tensor,
    *,
    interleaved: bool,
    pdl: bool = False,
) -> Tensor:
    """Return queries [tokens, heads, key_dim] as latents, and write the step's latents to their cells.

    `q` [parts, tokens, heads, unrotated + rotated] and `latents` [parts, tokens, key_dim] are products, whose
    parts are added up first (norm.py). `weight` [heads, unrotated, rank] projects the former; latents are
    normed; the last numbers of both are rotated. `rope` is the table of models/rope.py. A token with place -1
    is not written.
    """
    spec = layer.spec
    rank, rotated = spec.value_dim, spec.rotary_dim
    parts, tokens, heads, width = q.shape
    out = padded_rows(tokens, heads, spec.key_dim, like=weight)
    how = _tile(tokens, width - rotated, rank, parts, weight)
    _absorb[(heads, triton.cdiv(rank, how["COLUMNS"]) + 1, triton.cdiv(tokens, how["ROWS"]))](
        out, layer.keys, q, latents, weight, norm_weight, rope, positions, places, eps, tokens,
        q.stride(0), q.stride(1), q.stride(2), latents.stride(0), latents.stride(1), *weight.stride(),
        HEADS=heads, UNROTATED=width - rotated, ROTATED=rotated, RANK=rank, ROTATED_PAD=power(rotated),
        RANK_PAD=power(rank), INTERLEAVED=interleaved, Q_PARTS=parts, PARTS=len(latents), **how, PDL=pdl,
        num_warps=4, **launch(pdl),
    )  # fmt: skip
    return out


def _tile(tokens: int, inputs: int, outputs: int, parts: int, weight: Tensor) -> dict[str, int]:
    rows, columns, turn, stages = TALL
    if tokens <= FEW:
        rows, turn = max(NARROW, power(tokens)), max(NARROW, power(inputs))
        columns = max(NARROW, min(power(outputs), ALONE if tokens == 1 and turn <= 512 else WHOLE // turn))
    elif weight.itemsize > 2:  # the compiler unrolls products in float32
        rows, columns, turn = NARROW, NARROW, NARROW
    if parts > 1:  # they are in float32, and all of them would be in flight
        stages = 1
    return {"ROWS": rows, "COLUMNS": columns, "TURN": turn, "STAGES": stages}
