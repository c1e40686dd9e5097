"""Drafts made by heads on the model's last hidden states. They have no cache."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.api.params import MAX_DRAFT
from engine.execution.draft.medusa import MedusaHead
from engine.scheduling.step import Rows, SlotTokens, StepRow


class HeadDrafter:
    """Keeps the newest hidden states of each slot: enough to find the one before any accepted token.

    A position's state is overwritten when the position is computed again, as its keys and values are. A
    request that was forked or loaded from a tier has none until its next step: its first drafts start from
    zeros, which can only lower acceptance.
    """

    _KEPT = MAX_DRAFT + 1

    def __init__(self, heads: Sequence[MedusaHead]) -> None:
        self.heads = heads
        self._blank = torch.zeros_like(heads[0].out[0])
        # By slot: the request, and by place in a ring the position and its state.
        self._held: dict[int, tuple[int, dict[int, tuple[int, Tensor]]]] = {}

    def serve(self, store: object) -> None:
        """Nothing to do: heads have no cache."""

    def read(self, tokens: SlotTokens) -> None:
        """Nothing to do: heads read hidden states only."""

    def keep(self, hidden: Tensor, rows: Rows) -> None:
        """Keep the last state of each row. Drafts are rows of their own, so each of theirs is kept."""
        for row, end in zip(rows, np.cumsum(rows.lengths).tolist(), strict=True):
            request, ring = self._held.get(row.slot, (None, {}))
            if request != row.request:
                ring = {}
                self._held[row.slot] = row.request, ring
            position = row.start + row.length - 1
            ring[position % self._KEPT] = position, hidden[end - 1].clone()

    def drafts(
        self, rows: Sequence[StepRow], sample: Callable[[Tensor, Tensor, Rows], Tensor]
    ) -> dict[int, tuple[int, ...]]:
        """Drafts by request, as many as each row has room for."""
        hidden = torch.stack([self._before(row) for row in rows])
        found: dict[int, tuple[int, ...]] = {row.request: () for row in rows}
        for at in range(max(row.drafted for row in rows)):
            places = [place for place, row in enumerate(rows) if row.drafted > at]
            ahead = ((rows[place], rows[place].start + at) for place in places)
            of = Rows.of([StepRow(row.request, row.slot, start, 1, True) for row, start in ahead])
            slots = torch.tensor([row.slot for row in of], device=hidden.device)
            tokens = sample(self.heads[at].logits(hidden[places]), slots, of).tolist()
            for row, token in zip(of, tokens, strict=True):
                found[row.request] = (*found[row.request], token)
        return found

    def _before(self, row: StepRow) -> Tensor:
        """The state from which the model sampled the row's newest token."""
        request, ring = self._held.get(row.slot, (None, {}))
        position, state = ring.get((row.start - 1) % self._KEPT, (None, self._blank))
        return state if request == row.request and position == row.start - 1 else self._blank
