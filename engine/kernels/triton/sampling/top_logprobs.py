"""Log-probabilities of the sampled and the top tokens, without a sort.

A row is split into chunks, one program each, which takes its top tokens one after another; then one program
per row does the same with those of all chunks. The definition is engine/sampling/logprobs.py.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.api.params import MAX_LOGPROBS
from engine.kernels.triton.launch import power

CHUNK = 2048
NOWHERE = tl.constexpr(2**31 - 1)


@triton.jit
def _of_chunk(
    values, places, tops, sums, above, logits, tokens, counts, vocab,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    count = tl.load(counts + row)
    if count >= 0:
        at = chunk * CHUNK + tl.arange(0, CHUNK)
        score = tl.load(logits + row * vocab + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
        token = tl.maximum(tl.load(tokens + row), 0)
        chosen = tl.load(logits + row * vocab + token).to(tl.float32)
        top = tl.max(score, 0)
        anchor = tl.where(top == float("-inf"), 0.0, top)
        to = row * CHUNKS + chunk
        tl.store(tops + to, top)
        tl.store(sums + to, tl.sum(tl.exp(score - anchor), 0))
        tl.store(above + to, tl.sum((score > chosen).to(tl.int32), 0))
        for nth in range(count):
            best = tl.max(score, 0)
            place = tl.min(tl.where(score == best, at, NOWHERE), 0)
            tl.store(values + to * MOST + nth, best)
            tl.store(places + to * MOST + nth, place)
            score = tl.where(at == place, float("-inf"), score)


@triton.jit
def _of_row(
    chosen, ranks, ids, likely, values, places, tops, sums, above, logits, tokens, counts, vocab,
    CHUNKS: tl.constexpr, PADDED: tl.constexpr, MOST: tl.constexpr, MOST_PADDED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    count = tl.load(counts + row)
    if count >= 0:
        chunk = tl.arange(0, PADDED)
        at = row * CHUNKS + chunk
        high = tl.load(tops + at, mask=chunk < CHUNKS, other=float("-inf"))
        part = tl.load(sums + at, mask=chunk < CHUNKS, other=0.0)
        top = tl.max(high, 0)
        total = top + tl.log(tl.sum(tl.where(high == float("-inf"), 0.0, part * tl.exp(high - top)), 0))
        token = tl.maximum(tl.load(tokens + row), 0)
        tl.store(chosen + row, tl.load(logits + row * vocab + token).to(tl.float32) - total)
        tl.store(ranks + row, tl.sum(tl.load(above + at, mask=chunk < CHUNKS, other=0), 0).to(tl.int64) + 1)

        nth_at = tl.arange(0, MOST_PADDED)
        cell = at[:, None] * MOST + nth_at[None, :]
        there = (chunk < CHUNKS)[:, None] & (nth_at < count)[None, :]
        score = tl.load(values + cell, mask=there, other=float("-inf"))
        place = tl.load(places + cell, mask=there, other=NOWHERE)
        for nth in range(count):
            best = tl.max(score)
            one = tl.min(tl.where(score == best, place, NOWHERE))
            tl.store(likely + row * MOST + nth, best - total)
            tl.store(ids + row * MOST + nth, one.to(tl.int64))
            score = tl.where(place == one, float("-inf"), score)


def top_logprobs(logits: Tensor, tokens: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the log-probabilities and ranks of the sampled tokens, and the top tokens.

    The first two are [rows]; the top ids and their log-probabilities are [rows, 20]. `counts` is the number
    of top tokens per row; -1: the row requests no log-probabilities.
    """
    rows, vocab = logits.shape
    chunks = triton.cdiv(vocab, CHUNK)

    def made(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(rows, *shape, dtype=dtype, device=logits.device)

    values, places = made(torch.float32, chunks, MAX_LOGPROBS), made(torch.int32, chunks, MAX_LOGPROBS)
    tops, sums, above = made(torch.float32, chunks), made(torch.float32, chunks), made(torch.int32, chunks)
    chosen, ranks = made(torch.float32), made(torch.int64)
    ids, likely = made(torch.int64, MAX_LOGPROBS), made(torch.float32, MAX_LOGPROBS)
    parts = values, places, tops, sums, above
    _of_chunk[(rows, chunks)](
        *parts, logits, tokens, counts, vocab, CHUNKS=chunks, CHUNK=CHUNK, MOST=MAX_LOGPROBS, num_warps=4
    )
    _of_row[(rows,)](
        chosen, ranks, ids, likely, *parts, logits, tokens, counts, vocab,
        CHUNKS=chunks, PADDED=power(chunks), MOST=MAX_LOGPROBS, MOST_PADDED=power(MAX_LOGPROBS), num_warps=8,
    )  # fmt: skip
    return chosen, ranks, ids, likely


def rank_tokens(logits: Tensor, ids: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same for all rows, with `most` top tokens each. The definition has the same name."""
    rows, vocab = logits.shape
    most = min(most, vocab)
    counts = torch.full((rows,), most, dtype=torch.int32, device=logits.device)
    chosen, ranks, best, likely = top_logprobs(logits, ids, counts)
    return chosen, ranks, best[:, :most], likely[:, :most]
