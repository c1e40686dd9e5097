"""The log-probabilities of the chosen tokens, and of the top alternatives or of given tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Logprobs:
    """From the model's own distribution, before temperature, filters, penalties and biases."""

    requested: tuple[tuple[int, int], ...]  # (row of the step, number of top tokens requested)
    places: Sequence[int]  # index of each of these rows in the arrays below
    chosen: Tensor  # [places] float32
    ranks: Tensor  # [places] int64: 1 is the most likely
    ids: Tensor  # [places, most] int64, in descending order of probability
    values: Tensor  # [places, most] float32


def read_logprobs(
    logits: Tensor,
    ids: Tensor,
    requested: tuple[tuple[int, int], ...],
    exact: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
) -> Logprobs:
    """Return the logprobs of the rows that request them. `ids`: the chosen tokens of all rows.

    `exact`: by row, the tokens to return in place of the likeliest.
    """
    rows = torch.tensor([row for row, _ in requested], device=logits.device)
    most = max((n for row, n in requested if row not in exact), default=0)
    chosen, ranks, best, values = rank_tokens(logits[rows], ids[rows], most)
    if exact:
        requested = tuple((row, len(exact.get(row, range(n)))) for row, n in requested)
        extra = max(0, max(map(len, exact.values())) - most)
        best, values = F.pad(best, (0, extra)), F.pad(values, (0, extra))
        for place, (row, count) in enumerate(requested):
            if row in exact:
                best[place, :count] = torch.tensor(exact[row], device=logits.device)
                values[place, :count] = logprobs_of_tokens(logits[row], best[place, :count])
    return Logprobs(requested, range(len(requested)), chosen, ranks, best, values)


def logprobs_of_tokens(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probabilities of some tokens of a row. Forbidden tokens have the lowest number."""
    return logits.log_softmax(-1)[ids].clamp(min=torch.finfo(torch.float32).min)


def rank_tokens(logits: Tensor, ids: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return each row's log-probability of its token, the token's rank, and the `most` likeliest tokens with
    their log-probabilities.
    """
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(1, ids[:, None])
    ranks = (logprobs > chosen).sum(-1) + 1
    values, best = logprobs.topk(min(most, logits.shape[1]), -1)
    return chosen[:, 0], ranks, best, values
