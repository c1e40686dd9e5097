"""One line per block: its number, state, fill and holders."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from engine.api.snapshot import Snapshot, moved_where
from minichat.plural import plural
from minichat.ui.monitor.cells import State, moves
from minichat.ui.monitor.figures import request_name
from minichat.ui.monitor.owners import UNKNOWN, Owner
from minichat.ui.monitor.pane import Row, Signs, Span


def block_rows(
    shot: Snapshot,
    owners: Mapping[int, Owner],
    state: np.ndarray,
    targets: Sequence[int],
    signs: Signs,
    texts: Mapping[int, str],
) -> list[Row]:
    """`texts`: the text of each block, if known."""
    holders = _holders(shot, frozenset(targets))
    digits = len(f"{len(state)}")
    rows = (_row(shot, owners, State(state[block]), block, holders[block], digits) for block in targets)
    return [
        (*row, _text(State(state[block]), texts.get(block), signs))
        for row, block in zip(rows, targets, strict=True)
    ]


def _text(state: State, text: str | None, signs: Signs) -> Span:
    if state <= State.DROPPED or text is None:  # no text was requested
        return ("", "")
    return (f"  {signs.line(text)}", "strong") if text else ("  text unknown", "muted")


def _holders(shot: Snapshot, targets: frozenset[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for request in shot.requests:
        for block in targets.intersection(request.blocks):
            found[block].append(request.id)
    return found


def _row(
    shot: Snapshot, owners: Mapping[int, Owner], state: State, block: int, holders: Sequence[int], digits: int
) -> Row:
    spans: list[Span] = [(f" {block:>{digits}} ", "value"), (f" {state.name.lower():<7}", "muted")]
    if state <= State.DROPPED:
        return tuple(spans)
    blocks = shot.blocks
    spans.append((f"{blocks.filled[block]:>3}/{shot.block_size} ", "value"))
    if moved := int(moves(blocks)[block]):
        spans.append((f"{moved_where(moved, shot.tier_names)} ", "muted"))
    if state is State.CACHED:
        request = int(blocks.owner[block])
        ago = max(0, shot.step - int(blocks.used_at[block]))
        return (*spans, ("of ", "muted"), *_named(request, owners), (f"{plural(ago, 'step')} ago", "muted"))
    for request in holders:
        spans += _named(request, owners)
    hidden = int(blocks.refs[block]) - len(holders)
    return (*spans, (f"+{hidden} more", "muted")) if hidden > 0 else tuple(spans)


def _named(request: int, owners: Mapping[int, Owner]) -> list[Span]:
    owner = owners.get(request, UNKNOWN)
    return [(owner.name, f"owner:{owner.index}"), (f" {request_name(request)}  ", "muted")]
