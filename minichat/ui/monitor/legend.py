"""The two lines below the map: what its colors mean, and the number of blocks in each state."""

from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np
from rich.style import Style

from engine.api.snapshot import HOST, Snapshot, moved_where
from minichat.ui.monitor.cells import BRIGHT, RAMP, State, Tint
from minichat.ui.monitor.owners import Owner
from minichat.ui.monitor.pane import Row, Signs, Span
from minichat.ui.monitor.shades import Shades

_ENDS = {
    Tint.AGE: ("now", "long unused"),
    Tint.REFERENCES: ("0 holders", f"{RAMP - 1} or more"),
    Tint.FILL: ("empty", "full"),
}
_STATES = (State.SHARED, State.CACHED, State.FREE)
_CHATS = 4  # whose letters are shown for cached blocks


def legend(
    state: np.ndarray,
    codes: np.ndarray,
    owners: Sequence[Owner],
    tint: Tint,
    shades: Shades,
    signs: Signs,
    width: int,
    *,
    halves: bool,
) -> Row:
    """Owners with their block counts; or the two ends of a ramp."""
    if tint is not Tint.OWNER:
        low, high = _ENDS[tint]
        digits = [shades.swatch(State.USED, 0, level) for level in range(RAMP)]
        steps: list[Span] = [(signs.swatch if halves else digit, style) for digit, style in digits]
        return ((f" {low} ", "muted"), *steps, (f" {high}", "muted"))
    held = np.bincount(codes[state >= State.USED], minlength=len(owners))
    parts: list[Row] = []
    for code in np.argsort(-held, kind="stable").tolist():
        if held[code]:
            _, style = shades.swatch(State.USED, code, BRIGHT - 1)
            parts.append(((signs.swatch, style), (f" {owners[code].name} {held[code]:,}  ", "value")))
    return _fitting(parts or [(("nothing in use", "muted"),)], width, signs.cut)


def tier_legend(
    shot: Snapshot,
    state: np.ndarray,
    moved: np.ndarray,
    shades: Shades,
    signs: Signs,
    width: int,
    *,
    halves: bool,
) -> Row:
    """How many blocks were copied to each tier, or loaded from it."""
    counts = np.bincount(moved[state >= State.CACHED])
    parts: list[Row] = []
    for value in np.roll(np.arange(len(counts)), -1)[np.roll(counts, -1) > 0].tolist():  # computed ones last
        letter, style = shades.swatch(State.USED, 0, value)
        words = moved_where(value, shot.tier_names) if value else "computed"
        parts.append(
            ((signs.swatch if halves else letter, style), (f" {words} {counts[value]:,}  ", "value"))
        )
    return _fitting(parts or [(("nothing in use or cached", "muted"),)], width, signs.cut)


def totals(
    shot: Snapshot,
    state: np.ndarray,
    codes: np.ndarray,
    tint: Tint,
    shades: Shades,
    signs: Signs,
    width: int,
    *,
    halves: bool,
) -> Row:
    """Blocks in each state, each with its letters on the map. An age, a count, a share or a tier has none."""
    counts = np.bincount(state, minlength=len(State))
    if halves:
        signed: list[Row] = [((signs.swatch, shades.swatch(each)[1]),) for each in _STATES]
    else:
        shared: Row = (shades.swatch(State.SHARED),) if tint is Tint.OWNER else ()
        cached = _cached(codes[state == State.CACHED], tint, shades, signs)
        signed = [shared, cached, (shades.swatch(State.FREE),)]
    parts: list[Row] = []
    for each, letters in zip(_STATES, signed, strict=True):
        words = f"{' ' * bool(letters)}{each.name.lower()} {counts[each]:,}  "
        parts.append((*letters, (words, "value")))
    if counts[State.DROPPED]:
        words = f" dropped {counts[State.DROPPED]:,}  "
        sign = signs.swatch if halves else "~"
        parts.insert(2, ((sign, shades.swatch(State.DROPPED)[1]), (words, "value")))
    if shot.host_size:
        parts.insert(2, ((f"{HOST} ", "muted"), (f"{shot.host_in_use:,}/{shot.host_size:,}  ", "value")))
    parts += [
        (
            (f"{tier.name} ", "muted"),
            (f"{tier.in_use:,}/{tier.size:,}{' (off)' * bool(tier.problem)}  ", "value"),
        )
        for tier in shot.tiers
    ]
    return _fitting(parts, width, signs.cut)


def _cached(codes: np.ndarray, tint: Tint, shades: Shades, signs: Signs) -> Row:
    """The letters of cached blocks: those of the chats that left them, most blocks first, or a dash."""
    if tint is not Tint.OWNER:
        return (shades.swatch(State.CACHED),) if tint in (Tint.REFERENCES, Tint.FILL) else ()
    held = np.bincount(codes)
    letters: dict[str, Style] = {}
    for code in np.argsort(-held, kind="stable")[: np.count_nonzero(held)].tolist():
        letters.setdefault(*shades.swatch(State.CACHED, code))  # two chats may share one
    more = ((signs.cut, "muted"),) if len(letters) > _CHATS else ()
    return (*list(letters.items())[:_CHATS], *more)


def _fitting(parts: Sequence[Row], width: int, cut: str) -> Row:
    """The parts that fit completely, and a sign if there are more."""
    ends = [*accumulate(sum(len(text) for text, _ in part) for part in parts)]
    if 1 + ends[-1] <= width + 2:  # the trailing blanks of the last one may overflow
        return ((" ", ""), *chain(*parts))
    count = sum(2 + end <= width for end in ends)
    return ((" ", ""), *chain(*parts[:count]), (cut, "muted"))
