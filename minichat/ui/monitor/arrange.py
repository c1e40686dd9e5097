"""Where the panes stand in the room there is."""

from collections.abc import Sequence

KVMAP, QUEUES, RATES, LATENCY, EVENTS = PANES = (1, 2, 3, 4, 5)
WIDE = 100  # columns from which there are two columns of panes
_LEAST = {KVMAP: 5, QUEUES: 4, RATES: 5, LATENCY: 6, EVENTS: 4}
_SHARE = {KVMAP: 5, QUEUES: 3, RATES: 0, LATENCY: 0, EVENTS: 3}  # of the lines that are left
_FIRST = (KVMAP, QUEUES, RATES, LATENCY, EVENTS)  # who stays where the room is short

Place = tuple[int, int, int, int]  # column, line, width, height


def arrange(width: int, height: int, maximised: int | None = None) -> dict[int, Place]:
    """The pane's number and its place, for those that are seen."""
    if maximised is not None:
        return {maximised: (0, 0, width, height)}
    if width < WIDE:
        return _stack(PANES, 0, width, height)
    left = width // 2
    return {
        **_stack((KVMAP, QUEUES), 0, left - 1, height),
        **_stack((RATES, LATENCY, EVENTS), left + 1, width - left - 1, height),
    }


def _stack(panes: Sequence[int], column: int, width: int, height: int) -> dict[int, Place]:
    """One above the other with a line between; those that do not fit are left out."""
    shown = [pane for pane in _FIRST if pane in panes]
    while len(shown) > 1 and _needed(shown) > height:
        shown.pop()
    heights = {pane: min(_LEAST[pane], height) for pane in shown}
    spare = height - _needed(shown)
    total = sum(_SHARE[pane] for pane in shown)
    given = 0
    if spare > 0:
        for pane in shown:
            extra = spare * _SHARE[pane] // total if total else 0
            heights[pane] += extra
            given += extra
        last = max(shown, key=lambda pane: _SHARE[pane])
        heights[last] += spare - given
    places, line = {}, 0
    for pane in sorted(shown):
        places[pane] = (column, line, width, heights[pane])
        line += heights[pane] + 1
    return places


def _needed(panes: Sequence[int]) -> int:
    return sum(_LEAST[pane] for pane in panes) + len(panes) - 1
