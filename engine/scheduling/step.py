"""A step as a value: everything the runner needs to compute it. It holds no reference to the scheduler."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple, overload

import numpy as np

from engine.api.params import SamplingParams
from engine.api.request import Request
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
new_row = partial(tuple.__new__, StepRow)  # faster than `StepRow._make`, for every token
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
            self._listed = [*map(new_row, self.numbers.tolist())]  # `samples` is 0 or 1 here
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
