"""The top tokens of rows whose next token the caller chooses, such as beam search."""

from dataclasses import dataclass

from torch import Tensor

from engine.sampling.rows import RowsView
from engine.sampling.sampler import edited


@dataclass(frozen=True, slots=True)
class Candidates:
    """In descending order; a row that requests fewer than there are columns uses the first ones."""

    rows: tuple[int, ...]  # of the step
    ids: Tensor  # [rows, most] int64
    values: Tensor  # [rows, most] float32: log-probabilities, then penalties, biases and bans


def candidates(logits: Tensor, view: RowsView) -> Candidates:
    """Return the candidates of the rows that request them.

    Penalties apply to log-probabilities, as in the beam search of transformers.
    """
    rows = tuple(row for row, _ in view.candidates)
    most = min(max(count for _, count in view.candidates), logits.shape[1])
    if len(rows) < len(view):
        logits, view = logits[list(rows)], view.of(rows)
    values, ids = edited(logits.log_softmax(-1), view).topk(most, -1)
    return Candidates(rows, ids, values)
