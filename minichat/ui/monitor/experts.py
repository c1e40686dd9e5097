"""How evenly the experts of each layer are used."""

from collections import deque
from collections.abc import Sequence

import numpy as np

from engine.api.expert_load import ExpertLoad
from engine.api.snapshot import Snapshot
from minichat.ui.monitor.graphs import graph
from minichat.ui.monitor.pane import Line, Pane, Row

_WINDOW = 10.0  # seconds
_LABEL = 9  # cells of ` layer 12`, without what follows
_FIGURES = 13  # cells of `  12.3x  #127`
_TOP = 2.0  # times the mean, which a full bar shows
_HOT = 2.0  # times the mean, from which an expert is marked


class Experts(Pane):
    """A line per layer: a bar for each expert, half as high for the mean; then the busiest expert.

    Layers share a line and experts a bar if there is not enough room. Both show the busiest.
    """

    number, title = 6, "experts"

    def __init__(self, *, ascii: bool = False, id: str | None = None) -> None:
        super().__init__(ascii=ascii, id=id)
        self._loads: deque[tuple[float, ExpertLoad]] = deque()  # of the last seconds with steps
        self._ends: tuple[ExpertLoad, ExpertLoad] | None = None  # the first and the last of those shown

    def remember(self, snapshot: Snapshot) -> None:
        """Record the counts, also while hidden."""
        load, before = snapshot.experts, self._loads[-1][1] if self._loads else None
        if load is None:
            self._loads.clear()
            self._ends = None
            return
        if before is not None and np.array_equal(load.counts, before.counts) and load.like(before):
            return
        if before is None or not load.like(before) or (load.counts < before.counts).any():
            self._loads.clear()  # another model, or an engine that was started again
        self._loads.append((snapshot.at, load))
        while len(self._loads) > 2 and self._loads[1][0] < snapshot.at - _WINDOW:
            self._loads.popleft()
        self._take_in()

    def pause(self, on: bool) -> None:
        """Keep the bars as they are, and show the newest ones when they continue."""
        super().pause(on)
        self._take_in()

    def _take_in(self) -> None:
        if self._loads and not self.paused:
            self._ends = self._loads[0][1], self._loads[-1][1]

    @property
    def useful_lines(self) -> int | None:
        """Follows what `remember` has seen: a pane without lines gets no snapshots."""
        return 1 + len(self._loads[-1][1].layers) if self._loads else 0

    def rows(self, width: int, height: int) -> Sequence[Line]:
        if self.snapshot is None:
            return super().rows(width, height)
        if self._ends is None:
            return (self.heading(), ((" this model has no experts", "muted"),))
        first, newest = self._ends
        load, since = newest, "since the start"
        if first is not newest:
            load, since = newest.since(first), f"last {_WINDOW:g} s"
        if not load.counts.any():
            return (self.heading(), ((" no activity yet", "muted"),))
        worst = load.imbalance()
        facts = f"{load.chosen} of {load.experts}", f"busiest {worst.max():.1f}x the mean"
        relative = load.table / np.maximum(load.table.mean(1, keepdims=True), 1e-9)
        each = -(-len(relative) // max(1, height - 1))
        lines = [
            self._line(load.layers[at : at + each], relative[at : at + each], width)
            for at in range(0, len(relative), each)
        ]
        return (self.heading(*facts, right=since), *lines)

    def _line(self, layers: Sequence[int], relative: np.ndarray, width: int) -> Row:
        """`relative`: how often each expert of these layers was chosen, times the mean of its layer."""
        name = f"{layers[0]}" if len(layers) == 1 else f"{layers[0]}-{layers[-1]}"
        label = f" layer {name}" if len(layers) == 1 else f" {name}"
        by_expert = relative.max(0)
        busiest = int(by_expert.argmax())
        cells, ascii = max(0, width - _LABEL - _FIGURES - 1), self.signs.ascii
        (drawn,) = graph(_fitted(by_expert, cells if ascii else 2 * cells), cells, ascii=ascii, top=_TOP)
        hot = by_expert[busiest] >= _HOT
        return (
            (f"{label:<{_LABEL}} ", "muted"),
            (drawn, "graph"),
            (f"  {by_expert[busiest]:>4.1f}x", "warn" if hot else "value"),
            (f"  #{busiest}", "muted"),
        )


def _fitted(values: np.ndarray, columns: int) -> list[float]:
    """Several columns for each value, or the highest of several values for a column."""
    starts = np.arange(columns) * len(values) // max(1, columns)
    fitted = values[starts] if len(values) <= columns else np.maximum.reduceat(values, starts)
    return [float(each) for each in fitted]
