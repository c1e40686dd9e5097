"""The likeliest next tokens of rows for which somebody else decides which of them to take."""

from dataclasses import dataclass

from torch import Tensor

from engine.sampling.rows import RowsView
from engine.sampling.sampler import edited


@dataclass(frozen=True, slots=True)
class Candidates:
    """From the likeliest down; a row that asks for fewer than there are columns looks at its first ones."""

    rows: tuple[int, ...]  # of the step
    ids: Tensor  # [rows, most] int64
    values: Tensor  # [rows, most] float32: log-probabilities, then penalties, biases and bans


def candidates(logits: Tensor, view: RowsView) -> Candidates:
    """For the rows of the view that ask. Penalties fall on log-probabilities, as in transformers' beams."""
    rows = tuple(row for row, _ in view.candidates)
    most = min(max(count for _, count in view.candidates), logits.shape[1])
    if len(rows) < len(view):
        logits, view = logits[list(rows)], view.of(rows)
    values, ids = edited(logits.log_softmax(-1), view).topk(most, -1)
    return Candidates(rows, ids, values)
