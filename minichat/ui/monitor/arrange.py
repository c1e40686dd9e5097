"""Where the monitor's panes are placed."""

from collections.abc import Mapping, Sequence
from functools import partial

KVMAP, QUEUES, RATES, LATENCY, EVENTS, EXPERTS = PANES = (1, 2, 3, 4, 5, 6)
WIDE = 100  # columns from which there are two columns of panes
_LEAST = {KVMAP: 5, QUEUES: 4, RATES: 6, LATENCY: 6, EVENTS: 4, EXPERTS: 4}
_SHARE = {KVMAP: 5, QUEUES: 3, RATES: 2, LATENCY: 0, EVENTS: 3, EXPERTS: 3}  # weights for the remaining lines
_FIRST = (KVMAP, QUEUES, RATES, LATENCY, EXPERTS, EVENTS)  # priority if not all fit

Place = tuple[int, int, int, int]  # column, line, width, height


def arrange(
    width: int, height: int, maximized: int | None = None, useful_lines: Mapping[int, int] | None = None
) -> dict[int, Place]:
    """Return the place of each visible pane. `useful_lines`: the lines that a pane can use, if limited.

    0: it has nothing to show, and is left out.
    """
    if maximized is not None:
        return {maximized: (0, 0, width, height)}
    stack = partial(_stack, height=height, useful_lines=useful_lines or {})
    if width < WIDE:
        return stack(PANES, 0, width)
    left = width // 2
    return {
        **stack((KVMAP, QUEUES, EXPERTS), 0, left - 1),
        **stack((RATES, LATENCY, EVENTS), left + 1, width - left - 1),
    }


def _stack(
    panes: Sequence[int], column: int, width: int, *, height: int, useful_lines: Mapping[int, int]
) -> dict[int, Place]:
    """Stack panes with a blank line between them. Panes that do not fit are left out."""
    shown = [pane for pane in _FIRST if pane in panes and useful_lines.get(pane) != 0]
    heights = {pane: min(_LEAST[pane], useful_lines.get(pane, height), height) for pane in shown}
    while len(shown) > 1 and _needed(heights) > height:
        del heights[shown.pop()]
    least, spare = dict(heights), height - _needed(heights)
    for _ in range(spare):  # each line goes to the pane that has the least of its share
        growing = [pane for pane in shown if _SHARE[pane] and heights[pane] < useful_lines.get(pane, height)]
        if not growing:
            break
        heights[min(growing, key=lambda pane: (heights[pane] - least[pane] + 1) / _SHARE[pane])] += 1
    places, line = {}, 0
    for pane in sorted(shown):
        places[pane] = (column, line, width, heights[pane])
        line += heights[pane] + 1
    return places


def _needed(heights: Mapping[int, int]) -> int:
    return sum(heights.values()) + len(heights) - 1
