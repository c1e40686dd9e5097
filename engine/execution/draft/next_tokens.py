"""Drafts by a head that reads a token and the state before it, with one more layer of the model's cache."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.api.cache_spec import CacheSpec
from engine.attention.base import Attend, AttentionBackend, Batch, attending, caching
from engine.execution.batch import PackedBatch
from engine.execution.cuda.arrivals import Wait
from engine.execution.draft.heads import HiddenStates, by_row
from engine.kv.store import KVStore
from engine.models.decoder import Decoder
from engine.models.layers.next_token import NextTokenHead
from engine.models.layers.step import StepContext
from engine.scheduling.step import Rows, StepRow


class ChainedHead(Protocol):
    """Reads tokens and the states before them. What it returns is the states before the next tokens."""

    spec: CacheSpec  # of its layer, which follows the model's

    @property
    def own_bytes(self) -> int:
        """Of weights that are not the model's."""

    def states(self, hidden: Tensor, replayed: bool) -> Tensor:
        """The states after the tokens of a step of the model, which has just run. `replayed`: by a graph."""

    def forward(self, ids: Tensor, before: Tensor, at: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        """What logits are computed from, and the states. `at`: the positions."""

    def cache(self, ids: Tensor, before: Tensor, at: Tensor, attend: Attend) -> None:
        """Only cache the tokens. A single layer does not need its own results for that."""

    def logits(self, out: Tensor) -> Tensor: ...


class OwnHead:
    """The head for multi-token prediction that the model's own checkpoint has."""

    own_bytes = 0

    def __init__(self, model: Decoder, head: NextTokenHead) -> None:
        self._model, self._head, self.spec = model, head, head.spec

    def states(self, hidden: Tensor, replayed: bool) -> Tensor:
        return hidden

    def forward(self, ids: Tensor, before: Tensor, at: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        out = self._head.forward(self._model.embedded(ids), before, self._step(at, attend))
        return out, out

    def cache(self, ids: Tensor, before: Tensor, at: Tensor, attend: Attend) -> None:
        self._head.cache(self._model.embedded(ids), before, self._step(at, attend))

    def logits(self, out: Tensor) -> Tensor:
        return self._model.logits(out)

    def _step(self, at: Tensor, attend: Attend) -> StepContext:
        return StepContext(at, self._model.rope, attend, local_rope=self._model.local_rope)


class NextTokens:
    """The head's keys and values are one more layer of the model's cache, so they follow a request's blocks.

    The cell of a position holds its token and the state before it, so it depends on no later token.
    Every step caches its own tokens. The first token after a prefix that was found in the cache has no
    state before it, and is cached with zeros, which can only lower acceptance.
    """

    def __init__(
        self,
        head: ChainedHead,
        blank: Tensor,
        store: KVStore,
        attention: AttentionBackend,
        block_size: int,
    ) -> None:
        """`blank`: as a state."""
        self._head, self._store, self._attention = head, store, attention
        self.blank, self._layer = blank, len(store.layers) - 1
        self._states = HiddenStates(blank, block_size)
        self._fed: dict[int, Tensor] = {}  # by slot: the state before the next token that is drafted from

    @property
    def own_bytes(self) -> int:
        return self._head.own_bytes

    def keep(self, hidden: Tensor, rows: Rows, batch: Batch, wait: Wait, replayed: bool) -> None:
        """Cache the step's tokens, each with the state before it. `wait`: for blocks of the head's layer."""
        if wait is not None:
            wait(self._layer)
        states = self._head.states(hidden, replayed)
        before = states.roll(1, 0)
        for row, tokens in by_row(rows):
            before[tokens.start] = self._states.before(row)
            self._states.keep(row, states[tokens])
        cache = caching(self._attention, self._store.layers, batch)
        self._head.cache(batch.ids, before, batch.positions, cache)

    def begin(self, row: StepRow, token: int) -> tuple[StepRow, Sequence[int]]:
        self._fed[row.slot] = self._states.before(row)
        return row._replace(length=1, samples=True, drafted=0), [token]

    def observe(self, row: StepRow, drafts: tuple[int, ...]) -> None:
        """Nothing to do: the step itself overwrites the cache."""

    def hidden(self, packed: PackedBatch, rows: Rows) -> Tensor:
        """Run the head for a token of each row."""
        batch, slots = packed.batch, rows.slots.tolist()
        fed = torch.stack([self._fed[slot] for slot in slots])
        attend = attending(self._attention, self._store.layers, batch)
        out, states = self._head.forward(batch.ids, fed, batch.positions, attend)
        self._fed.update(zip(slots, states.unbind(0), strict=True))
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head.logits(hidden)
