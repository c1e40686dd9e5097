"""The sampling parameters of all running requests, by slot, and the view of them that a step uses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from engine.api.errors import BadParams
from engine.api.params import SamplingParams
from engine.sampling.penalties import SeenTokens
from engine.sampling.random import fold, uniform

T = TypeVar("T")
COLUMNS = ("temperature", "top_k", "top_p", "min_p", "repetition", "presence", "frequency", "uniform")
_COLDEST = 1e-30  # a lower temperature would overflow float32


@dataclass(frozen=True, slots=True)
class Edits:
    """Numbers added to single logits: biases, and -inf for tokens that are not allowed yet."""

    rows: Tensor  # [edits] int64
    ids: Tensor  # [edits] int64
    values: Tensor  # [edits] float32

    def part(self, start: int, stop: int) -> "Edits":
        inside = (self.rows >= start) & (self.rows < stop)
        return Edits(self.rows[inside] - start, self.ids[inside], self.values[inside])

    def of(self, rows: Sequence[int], count: int) -> "Edits":
        """Return the edits of some of `count` rows, renumbered in the given order."""
        places = np.full(count, -1)
        places[list(rows)] = np.arange(len(rows))
        at = torch.from_numpy(places).to(self.rows.device)[self.rows]
        inside = at >= 0
        return Edits(at[inside], self.ids[inside], self.values[inside])


@dataclass(slots=True)
class RowsView:
    """The rows of one step, in step order. The columns are on the device; the host copy is for decisions."""

    host: np.ndarray  # [rows, columns] float64
    columns: Tensor  # [columns, rows] float64
    slots: Tensor | None = None  # [rows] int64, indexes `seen`; None: no row has penalties
    seen: SeenTokens | None = None
    edits: Edits | None = None
    logprobs: tuple[tuple[int, int], ...] = ()  # (row, number of top tokens), for rows that request logprobs
    logprob_ids: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # by row: these, not the top
    candidates: tuple[tuple[int, int], ...] = ()  # (row, number of candidates), for rows of beam searches
    ahead: Tensor | None = None  # [2, drafts] int64: rows, and draft tokens before them that penalties count

    def __len__(self) -> int:
        return len(self.host)

    def on_host(self, column: str) -> np.ndarray:
        return self.host[:, COLUMNS.index(column)]

    def on_device(self, column: str) -> Tensor:
        return self.columns[COLUMNS.index(column)]

    def part(self, start: int, stop: int) -> "RowsView":
        """Return a range of the rows, without their logprobs."""
        return RowsView(
            self.host[start:stop],
            self.columns[:, start:stop],
            None if self.slots is None else self.slots[start:stop],
            self.seen,
            None if self.edits is None else self.edits.part(start, stop),
            ahead=None if self.ahead is None else _part_of(self.ahead, start, stop),
        )

    def of(self, rows: Sequence[int]) -> "RowsView":
        """Return some of the rows, without their logprobs, candidates and drafts."""
        at = list(rows)
        return RowsView(
            self.host[at],
            self.columns[:, at],
            None if self.slots is None else self.slots[at],
            self.seen,
            None if self.edits is None else self.edits.of(at, len(self)),
        )


Indices = Sequence[int] | np.ndarray  # index of the token each row samples in its reply, from 0
EditColumns = tuple[np.ndarray, np.ndarray, np.ndarray]  # as in Edits, on the host


class SamplingInputs(NamedTuple):
    """The rows of one step on the host, as the sampling kernels take them."""

    numbers: np.ndarray  # [rows, columns] float64
    vocab: int
    seen: SeenTokens | None  # None: no row has penalties
    edits: EditColumns | None
    logprobs: tuple[tuple[int, int], ...]  # (row, number of top tokens), for rows that request logprobs
    filtered: bool = True  # whether any row uses top-k or top-p; if none does, the kernels skip the filters


@dataclass(frozen=True, slots=True)
class _SlotEdits:
    ids: np.ndarray
    biases: np.ndarray
    banned: np.ndarray  # ids not allowed before `min_tokens`
    min_tokens: int

    @classmethod
    def of(cls, params: SamplingParams, end_ids: Sequence[int], vocab: int) -> "_SlotEdits":
        ids, biases = zip(*params.logit_bias, strict=True) if params.logit_bias else ((), ())
        banned = sorted({token for token in end_ids if token < vocab})
        columns = np.array(ids, np.int64), np.array(biases, np.float64), np.array(banned, np.int64)
        return cls(*columns, params.min_tokens)

    def at(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if index >= self.min_tokens:
            return self.ids, self.biases
        bans = np.full(len(self.banned), -np.inf)
        return np.concatenate((self.ids, self.banned)), np.concatenate((self.biases, bans))


class SamplingRows:
    """Sampling parameters by slot: set when a request takes the slot or changes them, cleared at its end."""

    def __init__(self, max_rows: int, vocab: int, device: torch.device) -> None:
        self._max_rows, self._vocab, self._device = max_rows, vocab, device
        self._numbers = np.zeros((max_rows, len(COLUMNS)))
        self._seeds = np.zeros(max_rows, np.uint64)
        self._edits: dict[int, _SlotEdits] = {}
        self._logprobs: dict[int, int] = {}
        self._logprob_ids: dict[int, tuple[int, ...]] = {}
        self._candidates: dict[int, int] = {}
        self._penalized: set[int] = set()
        self._filtered: set[int] = set()
        self._random: set[int] = set()
        self._guided: set[int] = set()
        self._seen: SeenTokens | None = None  # created by the first request with penalties

    def set(
        self,
        slot: int,
        params: SamplingParams,
        *,
        seed: int,
        end_ids: Sequence[int],
        tokens: Sequence[int],
        prompt_len: int,
        pending: Tensor | None = None,
    ) -> None:
        """Set the slot's parameters for the next views.

        `end_ids` are banned before `min_tokens`. `tokens` are the prompt and the part of the reply that is on
        the host; `pending` are the ids after them that only the device has so far. Penalties count all of
        them.
        """
        if outside := [token for token, _ in params.logit_bias if token >= self._vocab]:
            raise BadParams("logit_bias", f"token {outside[0]} is not in the vocabulary of {self._vocab}")
        self.clear(slot)
        self._seeds[slot] = fold(seed)
        self._numbers[slot] = (
            0.0 if params.greedy or params.beams > 1 else max(params.temperature, _COLDEST),
            min(params.top_k or self._vocab, self._vocab),
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
            0.0,
        )
        if self._numbers[slot, 0]:
            self._random.add(slot)
        if (params.top_k or self._vocab) < self._vocab or params.top_p < 1:
            self._filtered.add(slot)
        if params.logit_bias or params.min_tokens:
            self._edits[slot] = _SlotEdits.of(params, end_ids, self._vocab)
        if params.logprobs is not None:
            self._logprobs[slot] = params.logprobs
        if params.logprob_token_ids:
            self._logprob_ids[slot] = params.logprob_token_ids
        if params.beams > 1:
            self._candidates[slot] = params.candidates(len(end_ids))
        if params.guided:
            self._guided.add(slot)
        if params.penalized:
            self._penalized.add(slot)
            self._seen = self._seen or SeenTokens(self._max_rows, self._vocab, self._device)
            self._seen.start(slot, tokens[:prompt_len], tokens[prompt_len:], pending)

    def clear(self, slot: int) -> None:
        self._edits.pop(slot, None)
        self._logprobs.pop(slot, None)
        self._logprob_ids.pop(slot, None)
        self._candidates.pop(slot, None)
        self._penalized.discard(slot)
        self._filtered.discard(slot)
        self._random.discard(slot)
        self._guided.discard(slot)

    def note(self, slots: Sequence[int], ids: Tensor) -> None:
        """Count the tokens just sampled for these slots (ids still on the device) for their penalties."""
        rows = [row for row, slot in enumerate(slots) if slot in self._penalized]
        if self._seen is not None and rows:
            where = self._tensor(np.array([rows, [slots[row] for row in rows]]))
            self._seen.add(where[1], ids[where[0]])

    def guided(self, slots: Sequence[int]) -> list[int]:
        """Return which of these slots' rows follow a grammar."""
        return [row for row, slot in enumerate(slots) if slot in self._guided] if self._guided else []

    def inputs(self, at: np.ndarray, indices: Indices) -> SamplingInputs | None:
        """Like `view`, for the sampling kernels. None if a grammar, a beam search or the log-probabilities of
        given tokens also need the logits.
        """
        slots = at.tolist()
        others = (self._candidates, self._guided, self._logprob_ids)
        if any(others) and any(slot in each for each in others for slot in slots):
            return None
        return SamplingInputs(
            self.numbers(at, slots, indices),
            self._vocab,
            self._seen if _any(self._penalized, slots) else None,
            self._edits_at(slots, indices) if self._edits else None,
            _requested(slots, self._logprobs),
            _any(self._filtered, slots),
        )

    def numbers(self, at: np.ndarray, slots: Sequence[int], indices: Indices) -> np.ndarray:
        """[rows, columns], including this step's uniforms."""
        host = self._numbers[at]
        if _any(self._random, slots):
            host[:, -1] = uniform(self._seeds[at], np.asarray(indices))
        return host

    def view(
        self, at: Sequence[int] | np.ndarray, indices: Indices, ahead: Sequence[tuple[int, int]] = ()
    ) -> RowsView:
        """Return the sampler's input for these slots. `ahead`: drafts before a row, as (row, token)."""
        where = np.asarray(at)
        slots = where.tolist()
        host = self.numbers(where, slots, indices)
        penalized = _any(self._penalized, slots)
        return RowsView(
            host,
            self._tensor(host).T,
            self._tensor(where) if penalized else None,
            self._seen if penalized else None,
            self._edits_of(slots, indices),
            _requested(slots, self._logprobs),
            dict(_requested(slots, self._logprob_ids)),
            _requested(slots, self._candidates),
            self._tensor(np.array(ahead).T) if penalized and ahead else None,
        )

    def _edits_of(self, slots: Sequence[int], indices: Indices) -> Edits | None:
        found = self._edits_at(slots, indices) if self._edits else None
        return None if found is None else Edits(*map(self._tensor, found))

    def _edits_at(self, slots: Sequence[int], indices: Indices) -> EditColumns | None:
        found = [
            (row, *self._edits[slot].at(index))
            for row, (slot, index) in enumerate(zip(slots, indices, strict=True))
            if slot in self._edits
        ]
        if not any(len(ids) for _, ids, _ in found):
            return None
        rows = np.repeat([row for row, _, _ in found], [len(ids) for _, ids, _ in found])
        ids = np.concatenate([ids for _, ids, _ in found])
        values = np.concatenate([values for _, _, values in found]).astype(np.float32)
        return rows, ids, values

    def _tensor(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.to(self._device, non_blocking=True) if self._device.type == "cuda" else tensor


def _part_of(ahead: Tensor, start: int, stop: int) -> Tensor:
    inside = ahead[:, (ahead[0] >= start) & (ahead[0] < stop)]
    return torch.stack((inside[0] - start, inside[1]))


def _any(members: set[int], slots: Sequence[int]) -> bool:
    return bool(members) and not members.isdisjoint(slots)


def _requested(slots: Sequence[int], by_slot: dict[int, T]) -> tuple[tuple[int, T], ...]:
    if not by_slot:
        return ()
    return tuple([(row, by_slot[slot]) for row, slot in enumerate(slots) if slot in by_slot])
