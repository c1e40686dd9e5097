"""How fast the engine runs, now and in the last minutes."""

from collections import deque
from collections.abc import Iterable, Sequence

from engine.api.snapshot import Snapshot, Speculation
from minichat.plural import plural
from minichat.ui.monitor.graphs import graph
from minichat.ui.monitor.pane import Line, Pane, Row, Span

_KEPT = 1024  # samples
_MARKS = 32
_LABEL = 21  # cells of `prefill   1,234 tok/s`


class Rates(Pane):
    """Prefill and decode as graphs, and what a step holds."""

    number, title = 3, "rates"

    def __init__(self, *, ascii: bool = False, id: str | None = None) -> None:
        super().__init__(ascii=ascii, id=id)
        self._prefill: deque[float] = deque(maxlen=_KEPT)
        self._decode: deque[float] = deque(maxlen=_KEPT)
        self._samples = 0
        self._marks: deque[tuple[int, str]] = deque(maxlen=_MARKS)  # the sample that came next, and why

    def remember(self, snapshot: Snapshot) -> None:
        """Also while nobody looks, so that the graph has no gap."""
        self._prefill.append(snapshot.rates.prefill)
        self._decode.append(snapshot.rates.decode)
        self._samples += 1

    def mark(self, what: str) -> None:
        """Something has changed that the rates may show: a line through the graphs, here."""
        self._marks.append((self._samples, what))
        self.draw()

    def rows(self, width: int, height: int) -> Sequence[Line]:
        if (shot := self.snapshot) is None:
            return super().rows(width, height)
        rates, guessed = shot.rates, _guessed(shot.speculation)
        lines = max(1, (height - 3 - len(guessed)) // 2)
        return (
            self.heading(f"{rates.steps:.0f} steps/s", right=self._newest_mark(width)),
            *self._graph("prefill", rates.prefill, self._prefill, "second", width, lines),
            *self._graph("decode", rates.decode, self._decode, "graph", width, lines),
            (
                (" batch ", "muted"),
                (f"{rates.batch:.1f}", "value"),
                ("  step ", "muted"),
                (f"{rates.step_tokens:.0f} tok", "value"),
                ("  prefix hits " if width >= 48 else "  hits ", "muted"),
                (f"{shot.prefix_hit_rate:.0%}", "value"),
            ),
            (
                (" ", ""),
                (plural(shot.preemptions, "preemption"), "value"),
                ("  ", ""),
                (plural(shot.blocks.evictions, "eviction"), "value"),
                (f"  {shot.finished:,} done", "muted"),
            ),
            *guessed,
        )

    def _graph(
        self, name: str, value: float, history: Sequence[float], look: str, width: int, lines: int
    ) -> list[Row]:
        drawn = graph(list(history), max(0, width - _LABEL - 3), lines, ascii=self.signs.ascii)
        label = f" {name:<7} {value:>7,.0f} tok/s "
        labels = [*[" " * len(label)] * (lines - 1), label]
        marked = self._marked(len(drawn[0]))
        return [
            ((text, "value"), *self._crossed(line, look, marked))
            for text, line in zip(labels, drawn, strict=True)
        ]

    def _marked(self, width: int) -> dict[int, str]:
        """The columns of a graph that have a mark, and what it stands for."""
        samples = width if self.signs.ascii else 2 * width
        places = ((samples - 1 - max(0, self._samples - 1 - at), what) for at, what in self._marks)
        return {(at if self.signs.ascii else at // 2): what for at, what in places if at >= 0}

    def _crossed(self, line: str, look: str, marked: Iterable[int]) -> list[Span]:
        spans: list[Span] = []
        begin = 0
        for column in sorted(marked):
            spans += [(line[begin:column], look), (self.signs.mark, "warn")]
            begin = column + 1
        return [*spans, (line[begin:], look)]

    def _newest_mark(self, width: int) -> str:
        """What the last line through the graphs means, while it is seen."""
        marked = self._marked(max(0, width - _LABEL - 3))
        return f"{self.signs.mark} {marked[max(marked)]}" if marked else ""


def _guessed(told: Speculation) -> tuple[Row, ...]:
    """What guessing ahead has brought all requests so far, if any did."""
    if not told.verifications:
        return ()
    gain: tuple[Span, ...] = (("  gain ", "muted"), (f"{told.gain:.2f}x", "value")) if told.gain else ()
    return (
        (
            (" guesses ", "muted"),
            (f"{told.acceptance:.0%} stand", "value"),
            (f"  {told.tokens_a_step:.1f} tok a try", "muted"),
            *gain,
        ),
    )
