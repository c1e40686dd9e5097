"""Samples tokens from logits. Each row uses its own parameters, and its result does not depend on other rows.

Probabilities are scaled to whole numbers, so any sum of them is exact in float64: the order of addition, the
batch size and the device change neither what is kept nor what is sampled, and a token with zero mass is never
sampled.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.sampling.logprobs import Logprobs, read_logprobs
from engine.sampling.rows import RowsView

MASS = 2.0**48  # of a whole row; tokens with less than 2**-48 of it are never sampled
PART = 2**17  # scores per CPU pass: more would leave the cache between two operations
SORTABLE = 2**12  # up to this vocabulary size a sort is faster than two histograms
NUCLEUS = 64  # tokens that usually hold the nucleus: finding them is ten times as fast as sorting 3,072
_LOW = 15  # of a probability's 30 bits: one histogram of the high half, one of the low half


@dataclass(frozen=True, slots=True)
class Sampled:
    ids: Tensor  # [rows] int64
    bad: Tensor  # [rows] bool: the logits were not finite numbers, so the id is 0
    logprobs: Logprobs | None


def sample(logits: Tensor, view: RowsView) -> Sampled:
    """Sample a token for each row of float32 [rows, vocab] logits, leaving them unchanged. Never syncs."""
    rows, vocab = logits.shape
    nucleus = (view.on_host("top_p") < 1.0).any()
    step = max(1, PART // (max(vocab, 1 << _LOW) if nucleus else vocab))
    heavy = view.seen is not None or view.on_host("temperature").any()
    if heavy and rows > step and logits.device.type == "cpu":
        starts = range(0, rows, step)
        parts = [_draw(logits[at : at + step], view.part(at, at + step)) for at in starts]
        ids, tops = (torch.cat(side) for side in zip(*parts, strict=True))
    else:
        ids, tops = _draw(logits, view)
    bad = ~(tops.abs() < torch.inf)
    ids = ids.masked_fill_(bad, 0)
    likely = read_logprobs(logits, ids, view.logprobs, view.logprob_ids) if view.logprobs else None
    return Sampled(ids, bad, likely)


def _draw(logits: Tensor, view: RowsView) -> tuple[Tensor, Tensor]:
    """Return a token for each row, and the row's highest score, which shows whether the row is finite."""
    scores = edited(logits, view)
    greedy = view.on_host("temperature") == 0.0
    if greedy.all():
        return _argmax(scores)
    tops = scores.amax(-1)
    ids = pick(masses(scores, tops, view), view.on_device("uniform"))
    if greedy.any():
        ids = torch.where(view.on_device("temperature") == 0.0, _argmax(scores)[0], ids)
    return ids, tops


def edited(logits: Tensor, view: RowsView) -> Tensor:
    """Apply penalties, then biases and bans; return the logits themselves if there are none."""
    scores = logits
    if view.seen is not None and view.slots is not None:
        strengths = [
            view.on_device(name).float()[:, None] for name in ("repetition", "presence", "frequency")
        ]
        repetition, presence, frequency = strengths
        scores = view.seen.penalize(scores, view.slots, repetition, presence, frequency, view.ahead)
    if view.edits is not None:
        scores = scores.clone() if scores is logits else scores
        scores.index_put_((view.edits.rows, view.edits.ids), view.edits.values, accumulate=True)
    return scores


def masses(scores: Tensor, tops: Tensor, view: RowsView) -> Tensor:
    """Return each token's sampling weight: whole numbers in float64, 0 for tokens that a filter removed."""
    temperature = view.on_device("temperature").float()[:, None]
    scores = (scores - tops[:, None]).div_(torch.where(temperature == 0.0, 1.0, temperature))
    top_k = view.on_host("top_k")
    if (some := top_k[top_k < scores.shape[1]]).size:
        kth = _kth(scores, view.on_device("top_k").long(), int(some.max()))
        scores.masked_fill_(scores < kth, -torch.inf)
    chances = scores.softmax(-1)
    mass = chances.double().mul_(MASS).floor_()
    nucleus, floored = (view.on_host("top_p") < 1.0).any(), view.on_host("min_p").any()
    if not nucleus and not floored:
        return mass
    least = chances.amax(-1) * view.on_device("min_p").float()
    if nucleus:
        least = torch.maximum(least, _least_of_nucleus(chances, mass, view.on_device("top_p")))
    return mass.masked_fill_(chances < least[:, None], 0.0)


def pick(mass: Tensor, uniforms: Tensor) -> Tensor:
    """Return each row's first token, by id, whose cumulative mass exceeds the uniform's share."""
    chunks = _chunked(mass, 0.0)
    sums = chunks.sum(-1)
    total = sums.sum(-1)
    target = torch.minimum((uniforms * total).floor_(), total - 1)
    chunk, below = _first_above(sums, target)
    place, _ = _first_above(_one_of(chunks, chunk), target - below)
    return chunk * chunks.shape[2] + place


def _argmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first of each row's highest scores, and that score; in two steps: argmax is slow on CPUs."""
    chunks = _chunked(scores, -torch.inf)
    highs = chunks.amax(-1)
    chunk = highs.argmax(-1)
    place = _one_of(chunks, chunk).argmax(-1)
    return chunk * chunks.shape[2] + place, highs.gather(1, chunk[:, None])[:, 0]


def _kth(scores: Tensor, top_k: Tensor, most: int) -> Tensor:
    """[rows, 1]: each row's k-th highest score (ties are kept); -inf where k is more than `most`."""
    best = scores.topk(most, -1).values
    kth = best.gather(1, top_k.clamp(max=most)[:, None] - 1)
    return kth.masked_fill_(top_k[:, None] > most, -torch.inf)


def _least_of_nucleus(chances: Tensor, mass: Tensor, top_p: Tensor) -> Tensor:
    """[rows]: the lowest probability among the top tokens that together hold `top_p` of the mass."""
    total = mass.sum(-1)
    spare = torch.minimum(total - (total * top_p).ceil_(), total - 1)  # mass that may be dropped
    if chances.device.type == "cpu":  # where it is cheap to look whether the likeliest are enough
        likely, order = chances.topk(min(NUCLEUS, chances.shape[1]), -1)
        sums, kept = mass.gather(1, order).cumsum(-1), total - spare
        if (sums[:, -1] >= kept).all():
            return likely.gather(1, torch.searchsorted(sums, kept[:, None]))[:, 0]
    if chances.shape[1] > SORTABLE:
        return _least_by_counting(chances, mass, spare)
    ordered, order = chances.sort(-1)
    at, _ = _first_above(mass.gather(1, order), spare)
    return ordered.gather(1, at[:, None])[:, 0]


def _least_by_counting(chances: Tensor, mass: Tensor, spare: Tensor) -> Tensor:
    """Compute `_least_of_nucleus` by radix search: positive floats sort like their bits read as integers.

    The mass to drop is counted from below, over the high bits, then over the low bits of the bucket where it
    ends.
    """
    bits = chances.view(torch.int32)
    halves = (bits >> _LOW).clamp_(0, (1 << _LOW) - 1)  # the bits of a non-finite row are arbitrary
    high, _ = _first_above(_histogram(halves, mass, 1 << _LOW), spare)
    base = (high << _LOW).int()
    around = (bits - base[:, None]).clamp_(-1, 1 << _LOW).add_(1)  # 0 holds everything below the bucket
    low, _ = _first_above(_histogram(around, mass, (1 << _LOW) + 2), spare)
    return (base + low.int() - 1).clamp_(min=0).view(torch.float32)


def _histogram(buckets: Tensor, mass: Tensor, count: int) -> Tensor:
    return mass.new_zeros(len(mass), count).scatter_add_(1, buckets.long(), mass)


def _first_above(mass: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """[rows]: the first column whose cumulative mass exceeds the target, and the mass before it."""
    sums = mass.cumsum(-1)
    at = torch.searchsorted(sums, target[:, None], right=True).clamp_(max=mass.shape[1] - 1)
    return at[:, 0], (sums.gather(1, at) - mass.gather(1, at))[:, 0]


def _chunked(rows: Tensor, filler: float) -> Tensor:
    """View [rows, vocab] as [rows, chunks, width]; most vocabularies are a multiple of 64 or more."""
    width = next((width for width in (512, 256, 128, 64) if rows.shape[1] % width == 0), 512)
    if gap := -rows.shape[1] % width:
        rows = F.pad(rows, (0, gap), value=filler)
    return rows.unflatten(1, (-1, width))


def _one_of(chunks: Tensor, at: Tensor) -> Tensor:
    """[rows, width]: one chunk per row."""
    return chunks.gather(1, at[:, None, None].expand(-1, 1, chunks.shape[2]))[:, 0]
