"""How likely the model thought the chosen tokens, and their strongest rivals."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of the model's own distribution, before temperature, filters, penalties and biases."""

    asked: tuple[tuple[int, int], ...]  # (row of the step, how many of the likeliest it wants)
    places: Sequence[int]  # where each of these stands in what follows
    chosen: Tensor  # [places] float32
    ranks: Tensor  # [places] int64: 1 is the likeliest
    ids: Tensor  # [places, most] int64, from the likeliest down
    values: Tensor  # [places, most] float32


def read_logprobs(logits: Tensor, ids: Tensor, asked: tuple[tuple[int, int], ...]) -> Logprobs:
    """For the rows that ask: `ids` are the tokens chosen for all rows of [rows, vocab] logits."""
    rows = torch.tensor([row for row, _ in asked], device=logits.device)
    logprobs = logits[rows].log_softmax(-1)
    chosen = logprobs.gather(1, ids[rows, None])
    ranks = (logprobs > chosen).sum(-1) + 1
    values, best = logprobs.topk(min(max(n for _, n in asked), logits.shape[1]), -1)
    return Logprobs(asked, range(len(asked)), chosen[:, 0], ranks, best, values)
