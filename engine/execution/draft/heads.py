"""Drafts made by heads on the model's last hidden states. They have no cache."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from engine.api.params import MAX_DRAFT
from engine.execution.draft.medusa import MedusaHeads
from engine.scheduling.step import Rows, StepRow


class HiddenStates:
    """The newest hidden states of each slot: enough to find the one before any accepted token.

    A position's state is overwritten when the position is computed again, as its keys and values are. A
    request that was forked or loaded from a tier has none until its next step: its first drafts start from
    zeros, which can only lower acceptance.
    """

    def __init__(self, blank: Tensor, block_size: int | None = None) -> None:
        """`block_size`: also keep the states at the ends of blocks, to which recurrent states go back."""
        self._blank, self._size = torch.zeros_like(blank), block_size
        self._held: dict[int, tuple[int, dict[int, Tensor]]] = {}  # by slot: the request, states by position

    def keep(self, row: StepRow, states: Tensor) -> None:
        """Keep the last of a row's states."""
        request, held = self._held.get(row.slot, (None, {}))
        if request != row.request:
            held = {}
            self._held[row.slot] = row.request, held
        newest = row.start + row.length - 1
        held[newest] = states[-1].clone()
        if self._size is not None and (end := (newest + 1) // self._size * self._size - 1) >= row.start:
            held[end] = states[end - row.start].clone()
        for position in [each for each in held if not 0 <= newest - each <= self._room(each)]:
            del held[position]

    def before(self, row: StepRow) -> Tensor:
        """The state from which the model sampled the row's first token."""
        request, held = self._held.get(row.slot, (None, {}))
        return held.get(row.start - 1, self._blank) if request == row.request else self._blank

    def _room(self, position: int) -> int:
        """How many later positions there may be, while the one's state is kept."""
        ends_block = self._size is not None and (position + 1) % self._size == 0
        return MAX_DRAFT + (2 * self._size if ends_block and self._size is not None else 0)


def by_row(rows: Rows) -> Iterator[tuple[StepRow, slice]]:
    """Each row and its tokens."""
    for row, end in zip(rows, np.cumsum(rows.lengths).tolist(), strict=True):
        yield row, slice(end - row.length, end)


class HeadDrafter:
    """Heads that read hidden states only."""

    def __init__(self, heads: MedusaHeads) -> None:
        self._heads, self._states = heads, HiddenStates(heads.blank)

    @property
    def blank(self) -> Tensor:
        """As a hidden state."""
        return self._heads.blank

    @property
    def own_bytes(self) -> int:
        return self._heads.own_bytes

    def keep(self, hidden: Tensor, rows: Rows) -> None:
        """Keep the last state of each row. Drafts are separate rows, so the states of all are kept."""
        for row, tokens in by_row(rows):
            self._states.keep(row, hidden[tokens])

    def drafts(
        self, rows: Sequence[StepRow], sample: Callable[[Tensor, Tensor, Rows], Tensor]
    ) -> dict[int, tuple[int, ...]]:
        """Drafts by request, as many as each row has room for. All heads guess at once."""
        hidden = torch.stack([self._states.before(row) for row in rows])
        logits = self._heads.logits(hidden, max(row.drafted for row in rows))
        of = Rows.of(
            [
                StepRow(row.request, row.slot, row.start + at, 1, True)
                for row in rows
                for at in range(row.drafted)
            ]
        )
        slots = torch.from_numpy(of.slots).to(hidden.device)
        picked = torch.cat([logits[: row.drafted, place] for place, row in enumerate(rows)])
        tokens = iter(sample(picked, slots, of).tolist())
        return {row.request: tuple(islice(tokens, row.drafted)) for row in rows}
