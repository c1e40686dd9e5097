"""Encodes a step as bytes: columns of numbers end to end, and JSON for the parts that rarely change.

The bytes may come from another process, so they are checked before use: a block, slot or token out of
bounds would reach memory of another row.
"""

import json
import struct
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from engine.api.codec import DecodeError, codec
from engine.api.errors import BadInput, BadWire
from engine.api.params import MAX_LOGPROBS
from engine.kv.tables import TableDelta
from engine.scheduling.step import (
    LAST,
    ROW_WIDTH,
    Drafts,
    PromptSpan,
    PromptTargets,
    Rows,
    SlotSampling,
    SlotTokens,
    Step,
)

_HEAD = struct.Struct("<8q")  # number, single, and the lengths of the parts that follow
_WIDE, _NARROW = np.dtype("<i8"), np.dtype("<i4")


_RARE = {
    "sampling": codec(tuple[SlotSampling, ...]),
    "history": codec(tuple[SlotTokens, ...]),
    "drafts": codec(tuple[tuple[int, Drafts], ...]),
    "targets": codec(tuple[tuple[int, PromptTargets], ...]),
    "spans": codec(tuple[tuple[int, PromptSpan], ...]),
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of the runner that a step is for."""

    slots: int
    width: int  # maximum blocks of a row
    block_size: int
    blocks: int
    vocab: int
    groups: int = 1  # of layers, which share a row

    @property
    def context(self) -> int:
        return self.width // self.groups * self.block_size


def encode(step: Step) -> bytes:
    rare: dict[str, Any] = {
        "sampling": step.sampling,
        "history": step.history,
        "drafts": (*step.drafts.items(),),
        "targets": (*step.targets.items(),),
        "spans": (*step.spans.items(),),
    }
    fields = {name: _RARE[name].write(value) for name, value in rare.items() if value}
    tail = json.dumps(fields, separators=(",", ":")).encode() if fields else b""
    counts = (len(step.rows), len(step.ids), len(step.copies), len(step.tables.cells), len(step.guided))
    parts = [
        _HEAD.pack(step.number, step.single, *counts, len(tail)),
        step.rows.numbers.astype(_WIDE, copy=False).tobytes(),
        step.ids.astype(_WIDE, copy=False).tobytes(),
        np.array(step.copies, _WIDE).tobytes(),
        step.tables.cells.astype(_WIDE, copy=False).tobytes(),
        step.tables.blocks.astype(_NARROW, copy=False).tobytes(),
        np.array(step.guided, _WIDE).tobytes(),
        tail,
    ]
    return b"".join(parts)


def decode(data: bytes, bounds: Bounds) -> Step:
    """Decode a step. Raises BadWire if the bytes are not a step within the bounds."""
    if len(data) < _HEAD.size:
        _refuse(f"has {len(data)} bytes; its header alone takes {_HEAD.size}")
    number, single, rows, ids, copies, cells, guided, tail = _HEAD.unpack_from(data)
    counts = (rows, ids, copies, cells, guided, tail)
    if min(number, single, *counts) < 0:
        _refuse("has a negative number in its header")
    sizes = (8 * ROW_WIDTH * rows, 8 * ids, 16 * copies, 8 * cells, 4 * cells, 8 * guided, tail)
    if _HEAD.size + sum(sizes) != len(data):
        _refuse(f"has {len(data)} bytes; its header promises {_HEAD.size + sum(sizes)}")
    at, views = _HEAD.size, []
    for size in sizes:
        views.append(data[at : at + size])
        at += size
    wide = [np.frombuffer(view, _WIDE).astype(np.int64) for view in (*views[:4], views[5])]
    fields = _read_tail(views[6])
    step = Step(
        number=number,
        rows=Rows(wide[0].reshape(-1, ROW_WIDTH)),
        ids=wide[1],
        single=single,
        copies=_pairs(wide[2]),
        tables=TableDelta(wide[3], np.frombuffer(views[4], _NARROW).astype(np.int32)),
        sampling=fields["sampling"],
        history=fields["history"],
        guided=tuple(wide[4].tolist()),
        drafts=dict(fields["drafts"]),
        targets=dict(fields["targets"]),
        spans=dict(fields["spans"]),
    )
    check(step, bounds)
    return step


def check(step: Step, bounds: Bounds) -> None:
    """Raise BadWire if any number is out of bounds or the parts are inconsistent."""
    rows, single = step.rows, step.single
    if not (0 <= single <= len(rows) <= bounds.slots):
        _refuse(f"has {len(rows)} rows, {single} of them of one token, for {bounds.slots} slots")
    _within("slot", rows.slots, 0, bounds.slots)
    _within("start", rows.starts, 0, bounds.context)
    _within("length", rows.lengths, 1, bounds.context + 1)
    _within("end of a row", rows.ends, 1, bounds.context + 1)
    _within("sampling flag", rows.numbers[:, 4], 0, 2)
    _within("draft count", rows.drafted, 0, rows.lengths)
    _within("count of evicted tokens", rows.skipped, 0, rows.starts + 1)
    _within("part of an evicted block", rows.skipped % bounds.block_size, 0, 1)
    _within("number of an adapter", rows.adapters, 0, 2**31)
    if len(np.unique(rows.slots)) != len(rows):
        _refuse("has two rows in one slot")
    if len(np.unique(rows.numbers[:, 0])) != len(rows):
        _refuse("has two rows of one request")
    if (rows.lengths[:single] != 1).any() or (rows.lengths[single:] == 1).any():
        _refuse("has rows of one token after longer ones")
    if int(rows.lengths.sum()) != len(step.ids):
        _refuse(f"has {len(step.ids)} tokens for rows of {int(rows.lengths.sum())}")
    _within("token", step.ids[:single], LAST, bounds.vocab)
    _within("token", step.ids[single:], 0, bounds.vocab)
    _within("block of a copy", np.array(step.copies, np.int64), 0, bounds.blocks)
    _within("cell of the tables", step.tables.cells, 0, bounds.slots * bounds.width)
    _within("block of the tables", step.tables.blocks, 0, bounds.blocks)
    guided = np.array(step.guided, np.int64)
    _within("guided row", guided, 0, len(rows))
    if len(guided) and not rows.samples[guided].all():
        _refuse("guides a row that samples no token")
    _check_drafts(step, bounds)
    _check_targets(step, bounds)
    for each in step.sampling:
        _within("slot that samples", each.slot, 0, bounds.slots)
        _within("start of a reply", each.origin, 0, bounds.context + 1)
        _within("token of a slot", each.tokens, 0, bounds.vocab)
        _within("biased token", [token for token, _ in each.params.logit_bias], 0, bounds.vocab)
        _within("token with a log-probability", each.params.logprob_token_ids, 0, bounds.vocab)
        _within("seed", each.seed >> 64, 0, 1)
    for tokens_of in step.history:
        _within("slot with tokens", tokens_of.slot, 0, bounds.slots)
        _within("position of tokens", tokens_of.at, 0, bounds.context + 1 - len(tokens_of.tokens))
        _within("token of a slot", tokens_of.tokens, 0, bounds.vocab)


def _check_drafts(step: Step, bounds: Bounds) -> None:
    """Check that rows with drafts follow those of one token and that each has the stated drafts."""
    drafted = {row.request: row for row in step.rows if row.drafted}
    if drafted.keys() != step.drafts.keys():
        _refuse("has drafts for other rows than those marked as drafted")
    behind = step.rows.drafted[step.single : step.single + len(drafted)]
    if (behind == 0).any() or not all(row.samples for row in drafted.values()):
        _refuse("has rows with drafts in the wrong position")
    for request, drafts in step.drafts.items():
        row = drafted[request]
        if not row.length == 1 + row.drafted == 1 + drafts.length:
            _refuse(f"has {drafts.length} drafts for a row of {row.length} tokens")
        if len(drafts.tokens) not in (0, drafts.length):
            _refuse(f"has {len(drafts.tokens)} tokens for {drafts.length} drafts")
        _within("draft", drafts.tokens, 0, bounds.vocab)


def _check_targets(step: Step, bounds: Bounds) -> None:
    """Check that each prompt token follows a position of its row, and that each span is within its row."""
    rows = {row.request: row for row in step.rows}
    for request, (first, tokens, most) in step.targets.items():
        if (row := rows.get(request)) is None or row.drafted:
            _refuse(f"has prompt tokens of request {request}, which has no row of a prompt")
        _within("first prompt token", first, row.start + 1, row.start + 2 + row.length - len(tokens))
        _within("prompt token", tokens, 0, bounds.vocab)
        _within("count of likeliest tokens", most, 0, MAX_LOGPROBS + 1)
    for request, (first, length) in step.spans.items():
        if (row := rows.get(request)) is None or row.drafted:
            _refuse(f"has a span of request {request}, which has no row of a prompt")
        _within("length of a span", length, 1, row.length + 1)
        _within("start of a span", first, row.start, row.start + row.length - length + 1)


def _within(what: str, values: Any, low: int, beyond: Any) -> None:
    numbers = np.asarray(values)
    wrong = (numbers < low) | (numbers >= beyond)
    if wrong.any():
        _refuse(f"has a {what} of {np.atleast_1d(numbers)[np.atleast_1d(wrong)][0]}")


def _read_tail(tail: bytes) -> dict[str, Any]:
    try:
        value = json.loads(tail) if tail else {}
        if type(value) is not dict:
            _refuse("has a tail that is not a JSON object")
        return {name: part.read(value.get(name, [])) for name, part in _RARE.items()}
    except (ValueError, RecursionError) as error:
        raise BadWire(f"the step has a tail that is not JSON: {error}") from None
    except (DecodeError, BadInput) as error:
        raise BadWire(f"the step: {error}") from None


def _pairs(numbers: np.ndarray) -> tuple[tuple[int, int], ...]:
    return tuple((first, second) for first, second in numbers.reshape(-1, 2).tolist())


def _refuse(problem: str) -> NoReturn:
    raise BadWire(f"the step {problem}")
