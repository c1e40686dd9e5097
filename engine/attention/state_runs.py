"""Runs: successive tokens of one request in a step, and the blocks of the states around them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

RUN = 4  # numbers of a run: its row of the tables, its first token, the position of that, its length
CHUNK = 16


@dataclass(slots=True)
class _Run:
    """Successive tokens of one request: a row, or those that drafts were unrolled into."""

    first: int  # index of its first token in the step
    position: int  # of that token
    length: int
    table: np.ndarray
    row: int  # of the tables

    def block(self, offset: int, size: int) -> int:
        """The block of a token, by its offset in the run."""
        return int(self.table[(self.position + offset) // size])


class RunPiece(NamedTuple):
    """Tokens of a run of several, between two fixed positions of its text."""

    run: int
    tokens: slice  # in the step
    begins: bool  # whether it is the run's first piece
    block: int | None  # in which the state after it is stored; None: in none


class _Windows(NamedTuple):
    """What a convolution reads, if each run's history is put before its tokens. All are indices there."""

    histories: Tensor  # [runs, taps - 1]
    read: Tensor  # [taps, tokens]: by each token, the oldest first
    kept: Tensor  # [stored, taps - 1]: the last inputs where a state is stored


@dataclass(frozen=True, slots=True)
class DeviceRuns:
    """The runs of a step as kernels take them (kernels/triton/linear/)."""

    tables: Tensor  # [rows, blocks] int32
    runs: Tensor  # [runs, RUN] int32; a run of length 0 does nothing
    longest: int  # most tokens of a run
    single: bool  # most runs have one token

    @property
    def chunk(self) -> int:
        """How many tokens of a run a program computes if it need not compute them one after another."""
        return self.longest if self.single else CHUNK

    @classmethod
    def of(
        cls, starts: np.ndarray, ends: np.ndarray, host_tables: np.ndarray, size: int, tables: Tensor
    ) -> "DeviceRuns":
        runs = _runs(starts, ends, host_tables, size)
        numbers = np.array([(run.row, run.first, run.position, run.length) for run in runs], np.int32)
        longest = max((run.length for run in runs), default=1)
        return cls(tables, torch.from_numpy(numbers).to(tables.device), longest, single=longest == 1)


def write_runs(numbers: np.ndarray, slots: np.ndarray, contexts: np.ndarray, lengths: np.ndarray) -> None:
    """Write the runs of a step's rows [rows, RUN]. Drafts are rows of one token behind their request's."""
    numbers[:], count = 0, len(slots)
    positions, follows = contexts - lengths, np.zeros(count, bool)
    follows[1:] = (slots[1:] == slots[:-1]) & (positions[1:] == contexts[:-1])
    heads = np.flatnonzero(~follows)
    firsts = np.cumsum(lengths) - lengths
    together = np.diff(firsts[heads], append=lengths.sum())
    numbers[heads] = np.stack((slots[heads], firsts[heads], positions[heads], together), 1)


class StateRuns:
    """Where a step's tokens find the states before them, and which states are stored. Made once per step."""

    def __init__(
        self, starts: np.ndarray, ends: np.ndarray, tables: np.ndarray, size: int, device: torch.device
    ) -> None:
        """`starts`: where each row's tokens begin; `ends`: the position after its last one."""
        runs = _runs(starts, ends, tables, size)
        self._given, self._device, self.size = (starts, ends, tables, size), device, size
        self._firsts, self._positions, self._lengths = (
            np.array([getattr(run, name) for run in runs]) for name in ("first", "position", "length")
        )
        reads = np.array([run.block(-1, size) if run.position else 0 for run in runs])
        run_of = np.repeat(np.arange(len(runs)), self._lengths)
        positions = np.arange(len(run_of)) + (self._positions - self._firsts)[run_of]
        last = positions + 1 == (self._positions + self._lengths)[run_of]
        ended = np.flatnonzero(last | ((positions + 1) % size == 0))
        blocks = np.array([runs[run_of[at]].table[positions[at] // size] for at in ended], np.int64)
        self._ended = ended
        self._before = self._sent(run_of + 1)  # histories up to each token, its own run's included
        self._windows: dict[int, _Windows] = {}
        self.firsts, self.reads = self._sent(self._firsts), self._sent(reads)
        self.fresh = self._sent(self._positions == 0)
        # The tokens after which a state is stored, and the blocks that it is of.
        self.ended, self.blocks = self._sent(ended), self._sent(blocks)

    def _sent(self, numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self._device)

    def windows(self, taps: int) -> "_Windows":
        """Computed once for all layers, which have as many taps."""
        if taps not in self._windows:
            more, ordinal = taps - 1, torch.arange(len(self.firsts), device=self._device)
            places = torch.arange(len(self._before), device=self._device) + more * self._before
            back = torch.arange(-more, 1, device=self._device)[:, None]
            histories = (self.firsts + more * ordinal)[:, None] + torch.arange(more, device=self._device)
            self._windows[taps] = _Windows(histories, places + back, places[self.ended, None] + back[1:, 0])
        return self._windows[taps]

    @cached_property
    def on_device(self) -> DeviceRuns:
        return DeviceRuns.of(*self._given, self._sent(self._given[2]))

    @cached_property
    def order(self) -> np.ndarray:
        """The runs, longest first: those that have a token at some offset are the first ones."""
        return np.argsort(-self._lengths, kind="stable")

    def offsets(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each offset in the runs, by `order`: their tokens, and which then store a state, and where."""
        firsts, lengths = self._firsts[self.order], self._lengths[self.order]
        stored = {int(token): at for at, token in enumerate(self._ended)}
        for offset in range(int(lengths.max(initial=0))):
            tokens = firsts[lengths > offset] + offset
            saved = np.array([n for n, token in enumerate(tokens.tolist()) if token in stored], np.int64)
            places = np.array([stored[token] for token in tokens[saved].tolist()], np.int64)
            yield self._sent(tokens), self._sent(saved), self.blocks[self._sent(places)]

    def of_one(self) -> tuple[Tensor, Tensor, Tensor]:
        """The runs of one token: their numbers, their tokens, and where their states are stored."""
        runs = np.flatnonzero(self._lengths == 1)
        tokens = self._firsts[runs]
        stored = self._sent(np.searchsorted(self._ended, tokens))
        return self._sent(runs), self._sent(tokens), self.blocks[stored]

    def pieces(self, size: int) -> Iterator[RunPiece]:
        """Cut the runs of several tokens at positions that are multiples of `size`, which divides a block."""
        stored = dict(zip(self._ended.tolist(), self.blocks.tolist(), strict=True))
        for run in np.flatnonzero(self._lengths > 1).tolist():
            first, position = int(self._firsts[run]), int(self._positions[run])
            at, stop = first, first + int(self._lengths[run])
            while at < stop:
                end = min(at + size - (position + at - first) % size, stop)
                yield RunPiece(run, slice(at, end), at == first, stored.get(end - 1))
                at = end


def _runs(starts: np.ndarray, ends: np.ndarray, tables: np.ndarray, size: int) -> list[_Run]:
    """Join rows that continue each other."""
    runs = list[_Run]()
    for row, (first, stop, end) in enumerate(zip(starts[:-1], starts[1:], ends, strict=True)):
        length, before = int(stop - first), runs[-1] if runs else None
        position = int(end) - length
        if before is not None and _continues(before, position, tables[row], size):
            before.length += length
        else:
            runs.append(_Run(int(first), position, length, tables[row], row))
    return runs


def _continues(before: _Run, position: int, table: np.ndarray, size: int) -> bool:
    """Whether a row at `position` reads the state that the run before it stores last."""
    if position == 0 or before.position + before.length != position:
        return False
    return before.block(before.length - 1, size) == int(table[(position - 1) // size])
