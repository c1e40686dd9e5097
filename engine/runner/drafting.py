"""Drafts that a model makes inside a step: a small one with a cache of its own, or the model's first layers.

Each is drawn with the number that its place in the reply will be drawn with, so that a draft is often the
very token even of a sampled reply.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.base import AttentionBackend, Batch, attending
from engine.cache.store import KVStore
from engine.models.base import LanguageModel
from engine.models.decoder import Decoder
from engine.request import Request
from engine.runner.batch import BatchBuilder
from engine.scheduling.plan import Plan, Row

PIECE = 512  # tokens that a draft model takes in at a time, where it has a prompt to catch up on

# (logits, slots, rows) -> tokens, kept as each slot's last
Draw = Callable[[Tensor, Tensor, list[Row]], Tensor]


class EarlyExit:
    """The first layers of the model, through its own last norm and head. Their cache is the model's."""

    def __init__(self, model: Decoder, store: KVStore, attention: AttentionBackend, layers: int) -> None:
        self._model, self._store, self._attention, self._layers = model, store, attention, layers

    def serve(self, store: KVStore) -> None:
        """The cache has another form now: it is the very same."""

    def begin(self, row: Row, request: Request) -> Row:
        return Row(row.request, row.slot, row.start, 1, True)

    def saw(self, row: Row, request: Request, drafts: tuple[int, ...]) -> None:
        """Its cache is written again by the step itself."""

    def hidden(self, batch: Batch) -> Tensor:
        attend = attending(self._attention, self._store.layers, batch)
        return self._model.forward(batch.ids, batch.positions, attend, self._layers)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)


@dataclass(frozen=True, slots=True)
class _Held:
    """What a slot of the draft's cache holds: a request's first tokens, then drafts."""

    request: int
    preemptions: int
    known: int
    drafts: tuple[int, ...]

    def right(self, request: Request) -> int:
        """How many of its cells are those of the request's tokens."""
        if (self.request, self.preemptions) != (request.id, request.preemptions):
            return 0  # other blocks
        said = request.tokens[self.known : self.known + len(self.drafts)]
        for at, (draft, token) in enumerate(zip(self.drafts, said, strict=False)):
            if draft != token:
                return self.known + at
        return min(self.known + len(self.drafts), len(request.tokens))


class SmallModel:
    """Another model, whose cache lies in the same blocks of a store of its own."""

    def __init__(self, model: LanguageModel, attention: AttentionBackend, beside: KVStore) -> None:
        self.model, self._attention = model, attention
        self._held: dict[int, _Held] = {}  # by slot
        self.serve(beside)

    def serve(self, store: KVStore) -> None:
        """A cache with as many blocks as that one, which holds nothing."""
        blocks, block_size = store.layers[0].keys.shape[:2]
        first = next(self.model.parameters())
        self._held.clear()
        self.store = KVStore(
            self.model.config.layers,
            blocks=blocks,
            block_size=block_size,
            host_blocks=0,
            dtype=first.dtype,
            device=first.device,
            sinks=self.model.sinks,
        )

    def begin(self, row: Row, request: Request) -> Row:
        """From where its cache ends up to the row's token."""
        held = self._held.get(row.slot)
        start = min(held.right(request) if held else 0, row.start)
        return Row(row.request, row.slot, start, row.start + 1 - start, True)

    def saw(self, row: Row, request: Request, drafts: tuple[int, ...]) -> None:
        self._held[row.slot] = _Held(request.id, request.preemptions, row.start + 1, drafts[:-1])

    def hidden(self, batch: Batch) -> Tensor:
        attend = attending(self._attention, self.store.layers, batch)
        return self.model.forward(batch.ids, batch.positions, attend)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden)


Drafter = EarlyExit | SmallModel


def drafts_of(
    drafter: Drafter,
    rows: Sequence[Row],
    requests: Mapping[int, Request],
    batches: BatchBuilder,
    last_ids: Tensor,
    draw: Draw,
) -> dict[int, tuple[int, ...]]:
    """By request, as many drafts as its row has room for."""
    wanted = {row.request: row.drafted for row in rows}
    turns = [
        _caught_up(drafter, drafter.begin(row, requests[row.request]), batches, last_ids) for row in rows
    ]
    drawn: list[tuple[list[Row], Tensor]] = []
    while turns:
        turns.sort(key=lambda row: row.length > 1)
        laid = batches.build(_plan(turns), last_ids)
        hidden = drafter.hidden(laid.batch)
        if laid.ends is not None:
            hidden = hidden[laid.ends]
        drawn.append((turns, draw(drafter.logits(hidden), laid.slots, turns)))
        turns = [
            Row(row.request, row.slot, row.start + row.length, 1, True)
            for row in turns
            if wanted[row.request] > len(drawn)
        ]
    found: dict[int, tuple[int, ...]] = {}
    tokens = iter(torch.cat([ids for _, ids in drawn]).tolist())
    for made, _ in drawn:
        for row in made:
            found[row.request] = (*found.get(row.request, ()), next(tokens))
    for row in rows:
        drafter.saw(row, requests[row.request], found[row.request])
    return found


def _caught_up(drafter: Drafter, row: Row, batches: BatchBuilder, last_ids: Tensor) -> Row:
    """The last piece of what the drafter has to take in; those before it are done."""
    while row.length > PIECE:
        piece = Row(row.request, row.slot, row.start, PIECE, False)
        drafter.hidden(batches.build(_plan([piece]), last_ids).batch)
        row = Row(row.request, row.slot, row.start + PIECE, row.length - PIECE, True)
    return row


def _plan(rows: Sequence[Row]) -> Plan:
    single = sum(row.length == 1 for row in rows)
    return Plan(0, tuple(rows), single, sum(row.length for row in rows))
