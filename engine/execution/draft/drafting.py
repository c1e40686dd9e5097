"""Drafts made inside a step: by a small model with its own cache, or by the model's first layers.

A draft is sampled with the random number of its position in the reply, so it often matches the real
token even in a sampled reply.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.api.errors import BadWire
from engine.attention.base import AttentionBackend, attending
from engine.execution.batch import BatchBuilder, PackedBatch
from engine.execution.cuda.drafts import DraftReplays
from engine.execution.draft.heads import HeadDrafter
from engine.execution.draft.next_tokens import NextTokens
from engine.execution.sampling_state import SamplingState
from engine.execution.weights import weight_bytes
from engine.kv.store import KVStore
from engine.models.base import LanguageModel
from engine.models.decoder import Decoder
from engine.scheduling.step import LAST, Rows, SlotTokens, StepRow

PIECE = 512  # tokens that a draft model computes at a time when it catches up on a prompt

DraftRow = tuple[StepRow, Sequence[int]]  # a row of the drafter, and its tokens


class EarlyExit:
    """The model's first layers, followed by its norm and head. Uses the model's cache."""

    own_bytes = 0  # of weights that are not the model's

    def __init__(self, model: Decoder, store: KVStore, attention: AttentionBackend, layers: int) -> None:
        self._model, self._store, self._attention, self._layers = model, store, attention, layers

    def begin(self, row: StepRow, token: int) -> DraftRow:
        return row._replace(length=1, samples=True, drafted=0), [token]

    def observe(self, row: StepRow, drafts: tuple[int, ...]) -> None:
        """Nothing to do: the step itself overwrites the cache."""

    def hidden(self, packed: PackedBatch, rows: Rows) -> Tensor:
        batch = packed.batch
        attend = attending(self._attention, self._store.layers, batch)
        return self._model.forward(batch.ids, batch.positions, attend, self._layers, packed.adapters)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)


@dataclass(slots=True)
class _Held:
    """A slot of the draft model: its tokens, and the prefix and drafts that the cache holds."""

    tokens: list[int]
    known: int = 0
    drafts: tuple[int, ...] = ()

    @property
    def right(self) -> int:
        """How many cells of the cache match the slot's tokens."""
        text = self.tokens[self.known : self.known + len(self.drafts)]
        for at, (draft, token) in enumerate(zip(self.drafts, text, strict=False)):
            if draft != token:
                return self.known + at
        return min(self.known + len(self.drafts), len(self.tokens))


class SmallModel:
    """A small draft model. Its cache is a separate store with the same block numbers."""

    def __init__(self, model: LanguageModel, attention: AttentionBackend, store: KVStore) -> None:
        self.model, self.attention = model, attention
        self.replays: DraftReplays | None = None  # what launches its forwards on a GPU
        self._held: dict[int, _Held] = {}  # by slot
        self.store = self._beside(store)

    def release(self) -> None:
        """Free the cache, and what refers to it, before the model's gets other blocks."""
        self.replays = None
        self.store.clear()
        for held in self._held.values():
            held.known, held.drafts = 0, ()

    def serve(self, store: KVStore) -> None:
        """Replace the released cache by an empty one with as many blocks as `store`."""
        self.store = self._beside(store)

    def _beside(self, store: KVStore) -> KVStore:
        blocks, block_size = store.layers[0].keys.shape[:2]
        first = next(self.model.parameters())
        return KVStore(
            self.model.config.layers,
            blocks=blocks,
            block_size=block_size,
            host_blocks=0,
            dtype=first.dtype,
            device=first.device,
            sinks=self.model.sinks,
        )

    @property
    def own_bytes(self) -> int:
        return weight_bytes(self.model)

    def read(self, tokens: SlotTokens) -> None:
        """Append the slot's tokens, or start again if the slot has a new request."""
        if tokens.at == 0:
            self._held[tokens.slot] = _Held(list(tokens.tokens))
            return
        held = self._held.get(tokens.slot)
        if held is None or tokens.at > len(held.tokens):
            raise BadWire(f"the step has tokens of slot {tokens.slot} from {tokens.at}, without those before")
        held.tokens[tokens.at :] = tokens.tokens

    def begin(self, row: StepRow, token: int) -> DraftRow:
        """A row from the end of the cache to the step's token."""
        held = self._held.get(row.slot)
        if held is None or len(held.tokens) != row.start + 1:
            raise BadWire(f"the step drafts in slot {row.slot} from {row.start}, without the tokens before")
        start = min(held.right, row.start)
        return StepRow(row.request, row.slot, start, row.start + 1 - start, True), held.tokens[
            start : row.start + 1
        ]

    def observe(self, row: StepRow, drafts: tuple[int, ...]) -> None:
        held = self._held[row.slot]
        held.known, held.drafts = row.start + 1, drafts[:-1]

    def hidden(self, packed: PackedBatch, rows: Rows) -> Tensor:
        batch = packed.batch
        attend = attending(self.attention, self.store.layers, batch)
        return self.model.forward(batch.ids, batch.positions, attend)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden)


CachedDrafter = EarlyExit | SmallModel | NextTokens
Drafter = CachedDrafter | HeadDrafter


class Forwards:
    """The forwards of a drafter for one step."""

    def __init__(
        self, drafter: CachedDrafter, batches: BatchBuilder, sampling: SamplingState, replay: bool
    ) -> None:
        self._drafter, self._batches, self._sampling = drafter, batches, sampling
        self._replays = drafter.replays if replay and isinstance(drafter, SmallModel) else None

    def drafts(self, rows: Sequence[tuple[StepRow, int]]) -> dict[int, tuple[int, ...]]:
        """Drafts by request, as many as each row has room for. `rows`: each row and its token.

        Each forward reads what the one before has sampled, and nothing waits for the device before the last.
        """
        draft_rows = [self._catch_up(*self._drafter.begin(row, token)) for row, token in rows]
        sampled: list[Tensor] = []  # after each forward: the last token of every slot
        while draft_rows:
            draft_rows.sort(key=lambda draft_row: draft_row[0].length > 1)
            self._sample(draft_rows)
            sampled.append(self._sampling.last_ids.clone())
            drafting = {row.request for row, _ in rows if row.drafted > len(sampled)}
            draft_rows = [
                (row._replace(start=row.start + row.length, length=1), [LAST])
                for row, _ in draft_rows
                if row.request in drafting
            ]
        tokens = torch.stack(sampled).cpu().numpy()
        found = {row.request: tuple(tokens[: row.drafted, row.slot].tolist()) for row, _ in rows}
        for row, _ in rows:
            self._drafter.observe(row, found[row.request])
        return found

    def _sample(self, draft_rows: Sequence[DraftRow]) -> None:
        """Sample the next token of each row, as its slot's last."""
        rows, ids = _packed(draft_rows)
        if self._replays is not None and self._replays.sample(rows, ids):
            return
        packed = self._pack(rows, ids)
        hidden = self._drafter.hidden(packed, rows)
        if packed.ends is not None:
            hidden = hidden[packed.ends]
        self._sampling.guess(self._drafter.logits(hidden), packed.slots, rows)

    def _catch_up(self, row: StepRow, tokens: Sequence[int]) -> DraftRow:
        """Compute all but the last piece of the tokens that the drafter lacks; return the last."""
        while row.length > PIECE:
            rows, ids = _packed([(row._replace(length=PIECE, samples=False), tokens[:PIECE])])
            if self._replays is None or not self._replays.cache(rows, ids):
                self._drafter.hidden(self._pack(rows, ids), rows)
            row = row._replace(start=row.start + PIECE, length=row.length - PIECE)
            tokens = tokens[PIECE:]
        return row, tokens

    def _pack(self, rows: Rows, ids: np.ndarray) -> PackedBatch:
        return self._batches.build(rows, ids, int((rows.lengths == 1).sum()), self._sampling.last_ids)


def _packed(draft_rows: Sequence[DraftRow]) -> tuple[Rows, np.ndarray]:
    ids = np.concatenate([np.asarray(tokens, np.int64) for _, tokens in draft_rows])
    return Rows.of([row for row, _ in draft_rows]), ids
