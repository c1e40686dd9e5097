"""What the drafters of an engine do in each step."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from torch import Tensor

from engine.attention.base import Batch
from engine.execution.batch import BatchBuilder, PackedBatch
from engine.execution.cuda.arrivals import Wait
from engine.execution.draft.drafting import Drafter, Forwards, SmallModel
from engine.execution.draft.heads import HeadDrafter
from engine.execution.draft.next_tokens import NextTokens
from engine.execution.draft.verification import unroll_drafts
from engine.execution.sampling_state import SamplingState
from engine.kv.store import KVStore
from engine.scheduling.step import Drafts, Rows, SlotTokens, Step


class StepDrafts:
    def __init__(
        self, drafters: Mapping[str, Drafter], batches: BatchBuilder, sampling: SamplingState, slots: int
    ) -> None:
        self._drafters, self._batches, self._sampling = drafters, batches, sampling
        every = drafters.values()
        self.small = [each for each in every if isinstance(each, SmallModel)]
        self._readers = [each for each in every if isinstance(each, HeadDrafter | NextTokens)]
        # Decode graphs copy their hidden states here. None: no head uses them.
        self.states: Tensor | None = None
        for reader in self._readers:
            self.states = reader.blank.new_zeros(slots, len(reader.blank))

    @property
    def stores(self) -> list[KVStore]:
        """The caches of draft models, which use the same block numbers as the model's."""
        return [each.store for each in self.small]

    @property
    def nbytes(self) -> int:
        """What drafts take beside the model: weights of draft models and heads, and caches of models."""
        caches = sum(each.nbytes for each in self.stores)
        return caches + sum(each.own_bytes for each in self._drafters.values())

    def release(self) -> None:
        for each in self.small:
            each.release()

    def serve(self, store: KVStore) -> None:
        """Use this cache of the model's, which is new, after a release."""
        for each in self.small:
            each.serve(store)

    def read(self, history: Sequence[SlotTokens]) -> None:
        for tokens in history:
            for each in self.small:
                each.read(tokens)

    def fill(self, step: Step, *, replay: bool) -> tuple[Mapping[int, Drafts], np.ndarray, Rows, int]:
        """The step's drafts and ids, filled in with the drafts that models make here.

        Then its unrolled rows, and how many have one token. `replay`: whether graphs may run draft models.
        """
        made, ids = dict(step.drafts), step.ids
        drafted = step.rows[step.single : step.single + len(made)]
        ends = step.single + np.cumsum(drafted.lengths)
        places = {row.request: slice(end - row.drafted, end) for row, end in zip(drafted, ends, strict=True)}
        for kind, drafter in self._drafters.items():
            rows = [
                (row, int(ids[places[row.request].start - 1]))
                for row in drafted
                if made[row.request].kind == kind
            ]
            if rows:
                if isinstance(drafter, HeadDrafter):
                    found = drafter.drafts([row for row, _ in rows], self._sampling.guess)
                else:
                    found = Forwards(drafter, self._batches, self._sampling, replay).drafts(rows)
                self._sampling.apply(step.sampling)  # drafts were counted as text
                ids = ids.copy()
                for request, tokens in found.items():
                    made[request] = made[request]._replace(tokens=tokens)
                    ids[places[request]] = tokens
        return made, ids, *unroll_drafts(step.rows, step.single)

    def batch(self, pack: Callable[[], PackedBatch]) -> Batch | None:
        """What `keep` needs of a step that a graph runs, before it samples. None: nothing."""
        return pack().batch if self._readers else None

    def keep(
        self,
        states: Tensor | None,
        rows: Rows,
        batch: Batch | None,
        wait: Wait = None,
        replayed: bool = True,
    ) -> None:
        """Read the hidden states of a step. `states` None: a graph of decodes has left them.

        `replayed`: whether a graph has run the model.
        """
        if not self._readers:
            return
        assert batch is not None and self.states is not None
        if states is None:
            states = self.states[: len(batch.ids)]
        for each in self._readers:
            if isinstance(each, HeadDrafter):
                each.keep(states, rows)
            else:
                each.keep(states, rows, batch, wait, replayed)
