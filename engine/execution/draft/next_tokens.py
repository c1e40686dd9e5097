"""Drafts by the head for multi-token prediction that the model's own checkpoint has."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.attention.base import Attend, AttentionBackend, Batch, attending, caching
from engine.execution.batch import PackedBatch
from engine.execution.draft.heads import HiddenStates, by_row
from engine.kv.store import KVStore
from engine.models.decoder import Decoder
from engine.models.layers.next_token import NextTokenHead
from engine.models.layers.step import StepContext
from engine.scheduling.step import Rows, SlotTokens, StepRow


class NextTokens:
    """Its keys and values are one more layer of the model's cache, so they follow a request's blocks.

    The cell of a position holds its token and the hidden state before it, so it depends on no later token.
    Every step caches its own tokens. The first token after a prefix that was found in the cache has no
    hidden state before it, and is cached with zeros, which can only lower acceptance.
    """

    def __init__(
        self,
        model: Decoder,
        head: NextTokenHead,
        store: KVStore,
        attention: AttentionBackend,
        block_size: int,
    ) -> None:
        self._model, self._head, self._store, self._attention = model, head, store, attention
        self._states = HiddenStates(model.embed[0], block_size)
        self._fed: dict[int, Tensor] = {}  # by slot: the state before the next token that is drafted from

    def serve(self, store: KVStore) -> None:
        """Nothing to do: the cache is the model's own."""

    def read(self, tokens: SlotTokens) -> None:
        """Nothing to do: the model's own cache holds the tokens."""

    def keep(self, hidden: Tensor, rows: Rows, batch: Batch | None) -> None:
        """Cache the step's tokens, each with the hidden state before it."""
        assert batch is not None, "the step was replayed from a graph"
        before = hidden.roll(1, 0)
        for row, tokens in by_row(rows):
            before[tokens.start] = self._states.before(row)
            self._states.keep(row, hidden[tokens])
        step = self._step(batch, caching(self._attention, self._store.layers, batch))
        self._head.cache(self._model.embedded(batch.ids), before, step)

    def begin(self, row: StepRow, token: int) -> tuple[StepRow, Sequence[int]]:
        self._fed[row.slot] = self._states.before(row)
        return row._replace(length=1, samples=True, drafted=0), [token]

    def observe(self, row: StepRow, drafts: tuple[int, ...]) -> None:
        """Nothing to do: the step itself overwrites the cache."""

    def hidden(self, packed: PackedBatch) -> Tensor:
        """Run the head for a token of each row. What it returns is the state before the next one."""
        batch, slots = packed.batch, packed.slots.tolist()
        step = self._step(batch, attending(self._attention, self._store.layers, batch))
        fed = torch.stack([self._fed[slot] for slot in slots])
        out = self._head.forward(self._model.embedded(batch.ids), fed, step)
        self._fed.update(zip(slots, out.unbind(0), strict=True))
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)

    def _step(self, batch: Batch, attend: Attend) -> StepContext:
        return StepContext(batch.positions, self._model.rope, attend, local_rope=self._model.local_rope)
