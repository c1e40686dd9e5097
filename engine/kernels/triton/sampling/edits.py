"""A request's edits of the scores: penalties, biases, and tokens that are not allowed yet.

The definition is in engine/sampling (penalties.py, `edited` in sampler.py); columns are those of its rows.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.sampling.rows import COLUMNS

REPETITION, PRESENCE, FREQUENCY = (
    tl.constexpr(COLUMNS.index(name)) for name in ("repetition", "presence", "frequency")
)
MOST = tl.constexpr(2**15 - 1)  # token counts saturate here
TURN = 2048


@triton.jit
def _strengths(columns, row, rows):
    repetition = tl.load(columns + REPETITION * rows + row).to(tl.float32)
    presence = tl.load(columns + PRESENCE * rows + row).to(tl.float32)
    frequency = tl.load(columns + FREQUENCY * rows + row).to(tl.float32)
    return repetition, presence, frequency, (repetition != 1) | (presence != 0) | (frequency != 0)


@triton.jit
def _penalize(
    scores, logits, in_prompt, in_reply, columns, slots, vocab, SEEN: tl.constexpr, TURN: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TURN + tl.arange(0, TURN)
    there = at < vocab
    score = tl.load(logits + row * vocab + at, mask=there, other=0.0).to(tl.float32)
    if SEEN:
        repetition, presence, frequency, any = _strengths(columns, row, tl.num_programs(0))
        if any:
            cell = tl.load(slots + row) * vocab + at
            count = tl.load(in_reply + cell, mask=there, other=0).to(tl.float32)
            seen = (count > 0) | (tl.load(in_prompt + cell, mask=there, other=0) != 0)
            shrunk = tl.where(score > 0, tl.div_rn(score, repetition), score * repetition)
            score = tl.where(seen, shrunk, score) - frequency * count
            score -= tl.where(count > 0, presence, 0.0)
    tl.store(scores + row * vocab + at, score, mask=there)


@triton.jit
def _bias(scores, places, values, count, TURN: tl.constexpr):
    at = tl.program_id(0) * TURN + tl.arange(0, TURN)
    place = tl.load(places + at, mask=at < count, other=-1)
    value = tl.load(values + at, mask=at < count, other=0.0)
    tl.atomic_add(scores + place, value, mask=place >= 0, sem="relaxed")


@triton.jit
def _note(in_reply, tokens, columns, slots, vocab):
    row = tl.program_id(0)
    token = tl.load(tokens + row)
    if _strengths(columns, row, tl.num_programs(0))[3] & (token >= 0):
        cell = in_reply + tl.load(slots + row) * vocab + token
        tl.store(cell, tl.minimum(tl.load(cell).to(tl.int32) + 1, MOST).to(tl.int16))


def edit(
    logits: Tensor,
    columns: Tensor,
    slots: Tensor,
    seen: tuple[Tensor, Tensor] | None,
    biases: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Return the edited scores, [rows, vocab] in float32.

    `seen`: the tokens of the prompts and the counts of the replies, [slots, vocab] each; None: no row has
    penalties. `biases`: indices row * vocab + token, -1 for none, and the values to add.
    """
    rows, vocab = logits.shape
    scores = torch.empty(rows, vocab, dtype=torch.float32, device=logits.device)
    in_prompt, in_reply = (slots, slots) if seen is None else (seen[0].view(torch.uint8), seen[1])
    _penalize[(rows, triton.cdiv(vocab, TURN))](
        scores, logits, in_prompt, in_reply, columns, slots, vocab,
        SEEN=seen is not None, TURN=TURN, num_warps=4,
    )  # fmt: skip
    if biases is not None:
        places, values = biases
        _bias[(triton.cdiv(len(places), 256),)](scores, places, values, len(places), TURN=256, num_warps=4)
    return scores


def note(in_reply: Tensor, tokens: Tensor, columns: Tensor, slots: Tensor) -> None:
    """Count each row's token, for rows with penalties; -1 is no token."""
    _note[(len(tokens),)](in_reply, tokens, columns, slots, in_reply.shape[1], num_warps=1)
