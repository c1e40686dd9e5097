"""One step, decided: it can be printed, compared and replayed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Row(NamedTuple):
    """One request's part of a step: `length` tokens from `start` on."""

    request: int
    slot: int  # its row in the runner's columns
    start: int
    length: int
    samples: bool  # whether the step also draws its next token
    drafted: int = 0  # so many of its last tokens are drafts: a token is drawn at each, and before the first


class Drafts(NamedTuple):
    """What a row guesses its next tokens to be."""

    kind: str
    length: int
    tokens: tuple[int, ...]  # empty: the runner makes them
    stamp: int  # the request's: another one at commit, and only the first token was drawn as it is now wanted


@dataclass(frozen=True, slots=True)
class Plan:
    """Block moves first (out, in, copies, in that order), then rows: of one token, with drafts, the rest."""

    step: int
    rows: tuple[Row, ...]
    single: int = 0  # so many rows at the front have one token
    tokens: int = 0
    swaps_out: tuple[tuple[int, int], ...] = ()  # device block, host block
    swaps_in: tuple[tuple[int, int], ...] = ()  # host block, device block
    copies: tuple[tuple[int, int], ...] = ()  # copy on write: from, to
    drafts: Mapping[int, Drafts] = field(default_factory=dict)  # by request, of the rows that have some

    @property
    def prefill(self) -> int:
        """Tokens of prompts, and of replies that are computed again."""
        return sum(row.length for row in self.rows[self.single :] if not row.drafted)


@dataclass(slots=True)
class Draft:
    """A plan while it is being made: rows can still be taken back."""

    budget: int
    rows: dict[int, Row] = field(default_factory=dict)
    copies: dict[int, tuple[int, int]] = field(default_factory=dict)  # by request
    drafts: dict[int, Drafts] = field(default_factory=dict)  # by request
    swaps_out: list[tuple[int, int]] = field(default_factory=list)
    swaps_in: list[tuple[int, int]] = field(default_factory=list)
    preempted: bool = False

    def add(self, row: Row) -> None:
        self.rows[row.request] = row
        self.budget -= row.length

    def drop(self, request: int) -> None:
        row = self.rows.pop(request, None)
        self.copies.pop(request, None)
        self.drafts.pop(request, None)
        if row is not None:
            self.budget += row.length

    def plan(self, step: int) -> Plan:
        singles = [row for row in self.rows.values() if row.length == 1]
        chunks = [row for row in self.rows.values() if row.length != 1]
        if self.drafts:
            chunks.sort(key=lambda row: not row.drafted)
        return Plan(
            step=step,
            rows=(*singles, *chunks),
            single=len(singles),
            tokens=len(singles) + sum(row.length for row in chunks),
            swaps_out=tuple(self.swaps_out),
            swaps_in=tuple(self.swaps_in),
            copies=tuple(self.copies.values()),
            drafts=self.drafts,
        )
