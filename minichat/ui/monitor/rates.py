"""The engine's throughput, now and in the last minutes."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from engine.api.snapshot import Snapshot
from engine.api.speculation import Speculation
from minichat.plural import plural
from minichat.ui.monitor.figures import clock_time, number, per_second
from minichat.ui.monitor.graphs import KEPT, WINDOWS, History, finite, graph, rounded_up
from minichat.ui.monitor.pane import Line, Pane, Row, Span
from minichat.ui.snapshot_poller import quiet

_Sample = tuple[float, float, float, str]  # engine's time, rates, local time
_MARKS = 32
_LABEL = 22  # cells of ` prefill   1,234 tok/s`


class RateGraphs(Pane):
    """Graphs of prefill and decode rates, and figures of the batch and the cache."""

    number, title = 3, "rates"
    HINTS = (("monitor.window", "time window"), *Pane.HINTS)

    def __init__(
        self, *, ascii: bool = False, id: str | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(ascii=ascii, id=id)
        self.clock = clock
        self.as_of = ""  # the local time of the newest sample
        self.window = next(iter(WINDOWS))
        self._history = History()
        self._fresh: deque[_Sample] = deque(maxlen=KEPT)  # since the pause
        self._recorded = False  # whether there is any rate but 0
        self._marks: deque[tuple[float, str]] = deque(maxlen=_MARKS)  # time and label

    def remember(self, snapshot: Snapshot) -> None:
        """Record the rates, also while hidden, so that the graphs have no gap."""
        rates = snapshot.rates
        self._fresh.append((snapshot.at, rates.prefill, rates.decode, clock_time(self.clock())))
        self._take_in()

    def pause(self, on: bool) -> None:
        """Keep the graphs as they are, and show what has been recorded since when they continue."""
        super().pause(on)
        self._take_in()

    def _take_in(self) -> None:
        while self._fresh and not self.paused:
            at, prefill, decode, self.as_of = self._fresh.popleft()
            if at < self._history.now:
                self._marks.clear()  # a new engine has a new clock
            self._history.add(at, prefill, decode)
            self._recorded = self._recorded or prefill + decode > 0

    @property
    def _ran(self) -> bool:
        """Whether the engine has worked, maybe before this screen was opened."""
        return self._recorded or (self.snapshot is not None and self.snapshot.finished > 0)

    @property
    def useful_lines(self) -> int | None:
        return None if self._ran else 2

    def next_window(self) -> None:
        names = list(WINDOWS)
        self.window = names[(names.index(self.window) + 1) % len(names)]
        self.draw()

    def mark(self, at: float, what: str) -> None:
        """Draw a labeled line through the graphs at a time on the engine's clock."""
        self._marks.append((at, what))
        self.draw()

    def rows(self, width: int, height: int) -> Sequence[Line]:
        if (shot := self.snapshot) is None:
            return super().rows(width, height)
        rates, drafts = shot.rates, _speculation(shot.speculation)
        heading = self.heading(f"{per_second(rates.steps)} steps/s", right=self._newest_mark(width))
        if not self._ran and height == 2:
            return (heading, ((" no activity yet", "muted"),))
        lines = max(1, (height - 4 - len(drafts)) // 2)
        prefill, first = self._graph("prefill", rates.prefill, 0, "second", width, lines)
        decode, second = self._graph("decode", rates.decode, 1, "graph", width, lines)
        tops = f" top {per_second(first)}, {per_second(second)}" if lines == 1 else ""
        return (
            heading,
            *prefill,
            *decode,
            self._time_axis(tops, width),
            (
                (" batch ", "muted"),
                (number(rates.batch, ".1f"), "value"),
                ("  step ", "muted"),
                (f"{number(rates.step_tokens, ',.0f')} tok", "value"),
                ("  prefix hits " if width >= 48 else "  hits ", "muted"),
                (number(shot.prefix_hit_rate, ".0%"), "value"),
            ),
            (
                (" ", ""),
                (plural(shot.preemptions, "preemption"), "value"),
                ("  ", ""),
                (plural(shot.blocks.evictions, "eviction"), "value"),
                (f"  {shot.finished:,} done", "muted"),
            ),
            *drafts,
        )

    def _graph(
        self, name: str, value: float, figure: int, look: str, width: int, lines: int
    ) -> tuple[list[Row], float]:
        """The rows of a graph, and the value at their top."""
        cells = _cells(width)
        history = self._history.columns(figure, WINDOWS[self.window], self._dots(cells))
        top = rounded_up(max([finite(value), *history]))
        drawn = graph(history, cells, lines, ascii=self.signs.ascii, top=top)
        present = f" {name:<7} {per_second(value):>7} tok/s"
        labels = [f"{per_second(top):>16}", *[""] * (lines - 2), present] if lines > 1 else [present]
        looks = ["muted"] * (lines - 1) + ["value"]
        marked = self._marked(cells)
        axis = (self.signs.axis, "muted")
        rows = [
            ((f"{label:<{_LABEL}} ", look_of_label), axis, *self._crossed(line, look, marked))
            for label, look_of_label, line in zip(labels, looks, drawn, strict=True)
        ]
        return rows, top

    def _time_axis(self, tops: str, width: int) -> Row:
        """The time axis below the graphs. It ends now while samples arrive, else at the newest one."""
        rests = self.snapshot is None or quiet(self.snapshot) or bool(self.note)
        ago, end = f"-{self.window}", self.as_of if rests else "now"
        between = " " * (_cells(width) - len(ago) - len(end))
        return ((f"{tops:<{_LABEL + 1}.{_LABEL + 1}}", "muted"), (f" {ago}{between}{end}", "muted"))

    def _dots(self, cells: int) -> int:
        return cells if self.signs.ascii else 2 * cells

    def _marked(self, cells: int) -> dict[int, str]:
        """The graph columns that have a mark, with its label."""
        dots = self._dots(cells)
        if not dots:
            return {}
        places = ((self._history.column(at, WINDOWS[self.window], dots), what) for at, what in self._marks)
        return {place * cells // dots: what for place, what in places if 0 <= place < dots}

    def _crossed(self, line: str, look: str, marked: Iterable[int]) -> list[Span]:
        spans: list[Span] = []
        begin = 0
        for column in sorted(marked):
            spans += [(line[begin:column], look), (self.signs.mark, "warn")]
            begin = column + 1
        return [*spans, (line[begin:], look)]

    def _newest_mark(self, width: int) -> str:
        """The label of the newest visible mark."""
        marked = self._marked(_cells(width))
        return f"{self.signs.mark} {marked[max(marked)]}" if marked else ""


def _cells(width: int) -> int:
    """The width of a graph in cells."""
    return max(0, width - _LABEL - 3)


def _speculation(stats: Speculation) -> tuple[Row, ...]:
    """The results of speculative decoding over all requests so far, if any used it."""
    if not stats.verifications:
        return ()
    gain: tuple[Span, ...] = (
        (("  gain ", "muted"), (f"{number(stats.gain, '.2f')}x", "value")) if stats.gain else ()
    )
    return (
        (
            (" drafts ", "muted"),
            (f"{stats.acceptance:.0%} accepted", "value"),
            (f"  {stats.tokens_a_step:.1f} tok/step", "muted"),
            *gain,
        ),
    )
