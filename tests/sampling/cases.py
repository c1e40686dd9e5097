"""Steps for the sampler, and the expected results, computed in float64 one token after another."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.api.params import SamplingParams
from engine.sampling.rows import RowsView, SamplingRows
from engine.sampling.sampler import Sampled, masses, sample

CPU = torch.device("cpu")


def make_rows(
    params: Sequence[SamplingParams],
    vocab: int,
    *,
    tokens: Sequence[Sequence[int]] | None = None,
    prompt_len: int = 1,
    end_ids: Sequence[int] = (),
) -> SamplingRows:
    """Make a slot for each, in order. The number of a slot is also its seed."""
    rows = SamplingRows(len(params), vocab, CPU)
    for slot, each in enumerate(params):
        history = tokens[slot] if tokens else [0]
        rows.set(slot, each, seed=slot, end_ids=end_ids, tokens=history, prompt_len=prompt_len)
    return rows


def view_of(params: Sequence[SamplingParams], vocab: int, index: int = 0) -> RowsView:
    return make_rows(params, vocab).view(range(len(params)), [index] * len(params))


def draw(logits: Tensor, params: Sequence[SamplingParams], index: int = 0) -> Sampled:
    return sample(logits, view_of(params, logits.shape[1], index))


def sampleable(logits: Tensor, params: SamplingParams) -> set[int]:
    """Return the tokens of one row that can be sampled."""
    mass = masses(logits[None], logits.max()[None], view_of([params], len(logits)))
    return set(mass[0].nonzero()[:, 0].tolist())


def oracle_chances(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Return the distribution of one row that is not greedy, filters included."""
    scores = (logits.astype(np.float64) - logits.max()) / params.temperature
    if 0 < params.top_k < len(scores):
        scores = np.where(scores >= np.sort(scores)[-params.top_k], scores, -np.inf)
    chances = np.exp(scores) / np.exp(scores).sum()
    highest = chances.max()
    before = 0.0
    for token in np.argsort(-chances, kind="stable"):
        more = chances[token]
        if before >= params.top_p:
            chances[token] = 0.0
        before += more
    chances[chances < params.min_p * highest] = 0.0
    return chances / chances.sum()
