"""A step as a value: everything the runner needs to compute it. It holds no reference to the scheduler."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple, overload

import numpy as np

from engine.api.params import SamplingParams
from engine.api.request import Request
from engine.kv.pool import BlockPool
from engine.kv.tables import NO_CHANGES, TableDelta

LAST = -1  # in place of a token id: the token the slot sampled last, which may not have reached the host yet

Moves = tuple[tuple[int, int], ...]  # (from block, to block)


class StepRow(NamedTuple):
    """One request's part of a step: `length` tokens starting at position `start`."""

    request: int  # a label for results and logs; the runner does not look it up
    slot: int  # its row in the runner's per-slot columns
    start: int
    length: int
    samples: bool  # whether the step also samples the next token
    drafted: int = 0  # how many of the last tokens are drafts; one more token is sampled than that
    skipped: int = 0  # tokens before it whose blocks were evicted; its row of the block tables lacks them
    adapter: int = 0  # the number of its LoRA adapter; 0: none

    @classmethod
    def of(cls, request: Request, start: int, length: int, samples: bool, drafted: int) -> "StepRow":
        rare = request.skipped, request.adapter.number
        return cls(request.id, request.slot, start, length, samples, drafted, *rare)


ROW_WIDTH = len(StepRow._fields)
_ROW = partial(tuple.__new__, StepRow)  # faster than `StepRow._make`, for every token
_USUAL = StepRow._fields.index("skipped")  # the fields before it; the others are 0 in most steps


class Rows(Sequence[StepRow]):
    """The rows of a step as columns of numbers. Indexing gives a `StepRow`."""

    __slots__ = ("_ends", "_listed", "_rare", "_sampling", "numbers")

    def __init__(self, numbers: np.ndarray, rare: bool | None = None) -> None:
        self.numbers = numbers  # [rows, fields of StepRow] int64
        self._rare = rare  # None: not known
        self._sampling: Rows | None = None  # these three, too, are computed once
        self._ends: np.ndarray | None = None
        self._listed: Sequence[StepRow] | None = None

    @classmethod
    def of(cls, rows: Sequence[StepRow], rare: bool | None = None) -> "Rows":
        numbers = np.fromiter(chain.from_iterable(rows), np.int64, ROW_WIDTH * len(rows))
        found = cls(numbers.reshape(-1, ROW_WIDTH), rare)
        found._listed = rows
        return found

    @property
    def slots(self) -> np.ndarray:
        return self.numbers[:, 1]

    @property
    def starts(self) -> np.ndarray:
        return self.numbers[:, 2]

    @property
    def lengths(self) -> np.ndarray:
        return self.numbers[:, 3]

    @property
    def ends(self) -> np.ndarray:
        if self._ends is None:
            self._ends = self.numbers[:, 2] + self.numbers[:, 3]
        return self._ends

    @property
    def samples(self) -> np.ndarray:
        return self.numbers[:, 4] != 0

    @property
    def drafted(self) -> np.ndarray:
        return self.numbers[:, 5]

    @property
    def rare(self) -> bool:
        """Whether a row has evicted tokens or an adapter."""
        if self._rare is None:
            self._rare = bool(self.numbers[:, _USUAL:].any())
        return self._rare

    @property
    def skipped(self) -> np.ndarray:
        return self.numbers[:, 6]

    @property
    def contexts(self) -> np.ndarray:
        """How many tokens each row attends to, its own included."""
        return self.ends - self.skipped if self.rare else self.ends

    @property
    def adapters(self) -> np.ndarray:
        return self.numbers[:, 7]

    @property
    def sampling(self) -> "Rows":
        """The rows that sample a token. Returns this object if all of them do."""
        if self._sampling is None:
            every = np.count_nonzero(self.numbers[:, 4]) == len(self.numbers)
            self._sampling = self if every else Rows(self.numbers[self.samples], self._rare and None)
        return self._sampling

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[StepRow]:
        if self._listed is None:
            self._listed = [*map(_ROW, self.numbers.tolist())]  # `samples` is 0 or 1 here
        return iter(self._listed)

    @overload
    def __getitem__(self, at: int) -> StepRow: ...
    @overload
    def __getitem__(self, at: slice) -> "Rows": ...
    def __getitem__(self, at: int | slice) -> "StepRow | Rows":
        if isinstance(at, slice):
            return Rows(self.numbers[at])
        request, slot, start, length, samples, *more = self.numbers[at].tolist()
        return StepRow(request, slot, start, length, bool(samples), *more)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and np.array_equal(self.numbers, other.numbers)

    __hash__ = None  # type: ignore[assignment]  # it holds an array

    def __repr__(self) -> str:
        return f"Rows({list(self)})"


class Drafts(NamedTuple):
    """The draft tokens of a row."""

    kind: str
    length: int
    tokens: tuple[int, ...]  # empty: the runner's draft model makes them
    stamp: int  # of the request when they were made; if it has changed since, only the first token counts


class PromptTargets(NamedTuple):
    """Prompt tokens whose log-probabilities a row computes, each from the position before it."""

    first: int  # index of the first one in the prompt
    tokens: tuple[int, ...]
    most: int  # how many of the likeliest tokens are returned with each

    @classmethod
    def of(cls, request: Request, start: int, length: int) -> "PromptTargets | None":
        """The targets of a row, or None. Those computed before a preemption are not computed again."""
        first, end = max(start + 1, request.scored), min(start + length + 1, request.prompt_len)
        if first >= end or (most := request.params.prompt_logprobs) is None:
            return None
        return cls(first, tuple(request.tokens[first:end]), most)


class PromptSpan(NamedTuple):
    """Prompt positions of a row whose hidden states are summed."""

    first: int
    length: int

    @classmethod
    def of(cls, request: Request, start: int, length: int) -> "PromptSpan | None":
        """The span of a row, or None. Positions summed before a preemption are not summed again."""
        first, end = max(start, request.scored - 1), min(start + length, request.prompt_len)
        if first >= end or not request.params.pooling:
            return None
        return cls(first, end - first)


class SlotSampling(NamedTuple):
    """How a slot samples from this step on."""

    slot: int
    origin: int  # where its reply begins: a row that ends at `origin` samples the reply's first token
    params: SamplingParams
    seed: int
    tokens: tuple[int, ...] = ()  # with penalties: the tokens of the slot so far, the prompt first
    pending: bool = False  # whether the token it sampled last follows those


class SlotTokens(NamedTuple):
    """Tokens of a slot for a draft model. `at` 0: the slot has a new request, with other blocks."""

    slot: int
    at: int
    tokens: tuple[int, ...]


class Step(NamedTuple):
    """Block copies, then rows: those of one token, those with drafts, and prefill chunks, in this order.

    A value: once built, it does not change. Its arrays are writable only because torch warns of others.

    Changes to tables, sampling and tokens apply from this step on, even if it fails. A runner applies them
    once. Its copies of that state change in no other way.
    """

    number: int
    rows: Rows
    ids: np.ndarray  # token ids of the rows, end to end; LAST only in rows of one token; [tokens] int64
    single: int = 0  # the first `single` rows have one token each
    copies: Moves = ()  # copy on write
    tables: TableDelta = NO_CHANGES
    sampling: tuple[SlotSampling, ...] = ()
    history: tuple[SlotTokens, ...] = ()
    guided: tuple[int, ...] = ()  # indices of rows that sample under a mask, supplied after the launch
    drafts: Mapping[int, Drafts] = MappingProxyType({})  # by request, for the rows that have any
    targets: Mapping[int, PromptTargets] = MappingProxyType({})  # by request, for the rows that have any
    spans: Mapping[int, PromptSpan] = MappingProxyType({})  # by request, for the rows that have one

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def prefill(self) -> int:
        """Tokens of prompts, and of replies that are recomputed after a preemption."""
        rest = self.rows.numbers[self.single :]
        return int(rest[rest[:, 5] == 0, 3].sum()) if len(rest) else 0


class Masks(NamedTuple):
    """Which tokens the guided rows of a step may sample."""

    slots: tuple[int, ...]
    bits: np.ndarray  # [slots, bytes] uint8: a bit for each token, lowest bit first


@dataclass(slots=True)
class StepBuilder:
    """A step under construction. Rows can still be removed."""

    budget: int
    # From the tokens of decodes, where the first piece of a prompt starts, and the most tokens for prompts,
    # how many they may have. None: all.
    room: Callable[[int, int, int], int] | None = None
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
        self._rows[id] = _ROW((id, request.slot, start, 1, True, 0, skipped, adapter))
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

        With the first one, room for prompts may get less; all decodes must be there before.
        """
        if cut and self.room is not None:
            decodes = sum(row.length for row in self._rows.values())
            if self.budget > 0:
                self.budget = self.room(decodes, start, self.budget)
            self.room = None
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
        """Drop a request that loses its blocks. Returns whether one of them was to be copied for it.

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
        """Note at the requests what the step will have computed."""
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
