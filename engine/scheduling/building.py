"""Builds steps: the rows that the scheduler adds, and the changes that the runner's copies lack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType

import numpy as np

from engine.api.request import Request
from engine.kv.pool import BlockPool
from engine.kv.tables import BlockTables, TableDelta
from engine.scheduling.pace import PromptLimiter
from engine.scheduling.step import (
    Drafts,
    Moves,
    PromptSpan,
    PromptTargets,
    Rows,
    SlotSampling,
    SlotTokens,
    Step,
    StepRow,
    new_row,
)


@dataclass(slots=True)
class StepBuilder:
    """A step under construction. Rows can still be removed."""

    budget: int
    limiter: PromptLimiter | None = None  # called for the first chunk
    copies: dict[int, Moves] = field(default_factory=dict)  # by request
    drafts: dict[int, Drafts] = field(default_factory=dict)  # by request
    preempted: set[int] = field(default_factory=set)  # requests that lost their slot in this step
    targets: dict[int, PromptTargets] = field(default_factory=dict)  # by request
    spans: dict[int, PromptSpan] = field(default_factory=dict)  # by request
    short: bool = False  # a row waits for blocks that are being stored in a tier
    held: list[int] = field(default_factory=list)  # not free until the step is built
    _rows: dict[int, StepRow] = field(default_factory=dict)  # by request
    _ids: dict[int, int] = field(default_factory=dict)  # by request, of rows of one token, in their order
    _longer: dict[int, Sequence[int]] = field(default_factory=dict)  # the tokens of all other rows
    _rare: bool = False  # whether a row may have evicted tokens or an adapter
    _guided: set[int] = field(default_factory=set)

    def decode(self, request: Request, start: int, token: int) -> None:
        """Add a row of one token that samples."""
        id, skipped, adapter = request.id, request.skipped, request.adapter.number
        self._rows[id] = new_row((id, request.slot, start, 1, True, 0, skipped, adapter))
        self._ids[id] = token
        if skipped or adapter:
            self._rare = True
        self.budget -= 1

    def add(
        self,
        row: StepRow,
        tokens: Sequence[int],
        targets: PromptTargets | None = None,
        span: PromptSpan | None = None,
    ) -> None:
        self._rows[row.request] = row
        if row.length == 1:
            self._ids[row.request] = tokens[0]
        else:
            self._longer[row.request] = tokens
        if row.skipped or row.adapter:
            self._rare = True
        if targets is not None:
            self.targets[row.request] = targets
        if span is not None:
            self.spans[row.request] = span
        self.budget -= row.length

    def chunk(self, start: int, left: int, *, cut: bool) -> int:
        """How many of a prompt's remaining `left` tokens fit in this step. `cut`: chunks are allowed.

        The first chunk may lower the budget. All decodes must have been added before.
        """
        if cut and self.limiter is not None:
            decodes = sum(row.length for row in self._rows.values())
            if self.budget > 0:
                self.budget = self.limiter(decodes, start, self.budget)
            self.limiter = None
        if left <= self.budget:
            return left
        if cut:
            return max(0, self.budget)  # forks can overdraw the budget of a reduced step
        return 0 if self.has_prompt else left  # whole, and one prompt per step

    def copy(self, request: Request, source: int, target: int) -> None:
        """Copy a block for the request before the step."""
        self.copies[request.id] = (*self.copies.get(request.id, ()), (source, target))

    def guide(self, request: int) -> None:
        """Mark the request's row, which samples, as sampling under a mask."""
        self._guided.add(request)

    def preempt(self, victim: Request, pool: BlockPool) -> bool:
        """Drop a request that loses its blocks. Returns whether a copy of one was planned for it.

        Blocks that are copied for other requests stay held: a load, or another copy, could overwrite them.
        """
        self.preempted.add(victim.id)
        copied = victim.id in self.copies
        self.drop(victim.id)
        if self.copies:
            copied_for_others = chain.from_iterable(self.copies.values())
            sources = {source for source, _ in copied_for_others}.intersection(victim.blocks)
            pool.share(sources)
            self.held += sources
        return copied

    def drop(self, request: int) -> None:
        row = self._rows.pop(request, None)
        self.copies.pop(request, None)
        self.drafts.pop(request, None)
        self.targets.pop(request, None)
        self.spans.pop(request, None)
        self._ids.pop(request, None)
        self._longer.pop(request, None)
        self._guided.discard(request)
        if row is not None:
            self.budget += row.length

    def samples(self, request: int) -> bool:
        """Whether the request has a row that samples a token."""
        row = self._rows.get(request)
        return row is not None and row.samples

    @property
    def empty(self) -> bool:
        return not self._rows

    @property
    def has_prompt(self) -> bool:
        """Whether any row is a prefill chunk."""
        return any(row.length > 1 + row.drafted for row in self._rows.values())

    def launch(self, requests: Mapping[int, Request]) -> None:
        """Advance the requests by what the step computes."""
        for row in self._rows.values():
            request = requests[row.request]
            request.launched += row.length
            request.pending += row.samples

    def build(
        self,
        number: int,
        tables: TableDelta,
        sampling: tuple[SlotSampling, ...] = (),
        history: tuple[SlotTokens, ...] = (),
    ) -> Step:
        rows = list(self._rows.values())
        if self._longer:
            rows.sort(key=lambda row: 0 if row.length == 1 else 1 if row.drafted else 2)
        single, ids = len(self._ids), np.fromiter(self._ids.values(), np.int64, len(self._ids))
        if self._longer:
            longer = [np.array(self._longer[row.request], np.int64) for row in rows[single:]]
            ids = np.concatenate([ids, *longer])
        guided: tuple[int, ...] = ()
        if self._guided:
            guided = tuple(at for at, row in enumerate(rows) if row.request in self._guided)
        return Step(
            number=number,
            rows=Rows.of(rows, None if self._rare else False),
            ids=ids,
            single=single,
            copies=tuple(chain.from_iterable(self.copies.values())) if self.copies else (),
            tables=tables,
            sampling=sampling,
            history=history,
            guided=guided,
            drafts=MappingProxyType(self.drafts),
            targets=MappingProxyType(self.targets),
            spans=MappingProxyType(self.spans),
        )


class Changes:
    """The changes since the last step. A failed step has delivered its changes too."""

    def __init__(self, tables: BlockTables) -> None:
        self._tables = tables
        self._resampled: dict[int, Request] = {}
        self._history: dict[int, SlotTokens] = {}  # by request

    def resample(self, request: Request) -> None:
        """Send the request's sampling parameters with its next row that samples."""
        self._resampled[request.id] = request

    def drafts(self, request: Request, *, on_device: bool) -> None:
        """Note that the request's row has drafts.

        A draft model needs the tokens before them. Penalties count drafts as text, so the slot's real tokens
        are sent with this step and with the next.
        """
        if on_device:
            known = request.mirrored
            self._history[request.id] = SlotTokens(request.slot, known, tuple(request.tokens[known:]))
            request.mirrored = len(request.tokens)
        if request.params.penalized:
            self.resample(request)

    def build(self, builder: StepBuilder, number: int) -> Step:
        """Build the step with all changes to its rows. Sampling changes wait for a row that samples."""
        waiting, self._resampled = self._resampled, {}
        sampling = []
        for id, request in waiting.items():
            if request.slot < 0:
                continue  # it is resampled when it runs again
            if samples := builder.samples(id):
                sampling.append(_sampling(request))
            if not samples or (id in builder.drafts and request.params.penalized):
                self._resampled[id] = request
        history: tuple[SlotTokens, ...] = ()
        if self._history:
            history = tuple(each for id, each in self._history.items() if id in builder.drafts)
            self._history = {}
        return builder.build(number, self._tables.take_changes(), tuple(sampling), history)


def _sampling(request: Request) -> SlotSampling:
    seen = tuple(request.tokens) if request.params.penalized else ()
    return SlotSampling(
        request.slot, request.prompt_len, request.params, request.seed, seen, request.pending > 0
    )
