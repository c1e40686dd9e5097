"""The engine in one line, shown while the monitor is hidden."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from engine.api.snapshot import Snapshot
from minichat.ui.monitor.figures import duration, token_rate
from minichat.ui.monitor.graphs import bar, finite, graph
from minichat.ui.monitor.owners import Owner
from minichat.ui.monitor.pane import ASCII, UNICODE
from minichat.ui.switches import changed_switches

_BAR, _GRAPH = 11, 8
_WIDE, _AIRY = 76, 46  # columns from which all parts fit, and from which counts are spaced


@dataclass(frozen=True, slots=True)
class EngineSummary:
    """The content of the line, which is drawn only when it changes."""

    used: int
    size: int
    waiting: int
    prefill: int
    decode: int
    out: int  # preempted or swapped
    rate: float
    history: tuple[float, ...]
    step: float
    error: str
    changed: tuple[str, ...] = ()  # switches that differ from the engine's start


class EngineLine(Widget):
    """Leaves out what does not fit, from the end."""

    DEFAULT_CSS = """
    EngineLine { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    """
    facts: reactive[EngineSummary | None] = reactive(None, layout=False)
    note: reactive[str] = reactive("", layout=False)  # why the figures are not current

    def __init__(self, *, ascii: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self._signs = ASCII if ascii else UNICODE
        self._history: deque[float] = deque(maxlen=2 * _GRAPH)

    def update_from(self, snapshot: Snapshot, owners: Mapping[int, Owner]) -> None:
        rates = snapshot.rates
        rate = rates.prefill + rates.decode
        self._history.append(finite(rate))
        phases = Counter(request.phase for request in snapshot.requests)
        out = phases["preempted"] + phases["swapped"]
        self.facts = EngineSummary(
            used=snapshot.blocks.in_use,
            size=snapshot.usable_blocks,
            waiting=max(phases["waiting"], snapshot.waiting - out),
            prefill=phases["prefill"],
            decode=phases["decode"],
            out=out,
            rate=round(rate, 0 if rate >= 10 else 2),
            history=tuple(self._history),
            step=round(snapshot.step_times.total, 5),  # a figure of `duration` below a millisecond
            error="" if snapshot.runs else snapshot.error,  # in a fleet, that of a lost replica
            changed=changed_switches(snapshot.switches),
        )

    def forget(self) -> None:
        """Show nothing until the next engine has sent a snapshot."""
        self.facts = None

    def render(self) -> Content:
        if (facts := self.facts) is None:
            return Content("")
        if facts.error:
            return Content.styled(f" no engine: {self._signs.line(facts.error)}", "$text-error")
        signs, width = self._signs, self.size.width
        share = facts.used / max(facts.size, 1)
        wide = width >= _WIDE
        gauge = bar(share, _BAR if wide else 6, signs.full, "_" if signs.ascii else signs.rest)
        blocks = f" {facts.used}/{facts.size}" if wide else ""
        spark = "".join(graph(facts.history, _GRAPH // (1 if wide else 2), ascii=signs.ascii))
        apart = " " if width >= _AIRY else ""
        counts = {"W": facts.waiting, "P": facts.prefill, "D": facts.decode, "X": facts.out}
        parts = [
            *([self.note] if self.note else []),
            f"KV [{gauge}] {share:4.0%}{blocks}",
            " ".join(f"{letter}{apart}{count}" for letter, count in counts.items()),
            f"{token_rate(facts.rate)} {spark}",
            duration(facts.step),
        ]
        if facts.changed:
            parts.insert(-3, ", ".join(facts.changed))
        between = " | "
        while len(parts) > 1 and len(between.join(parts)) >= width:
            parts.pop()
        return Content(f" {between.join(parts)}")
