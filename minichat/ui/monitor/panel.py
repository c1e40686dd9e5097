"""The monitor: panes that show the engine's snapshots and events."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.geometry import NULL_OFFSET, NULL_SPACING, Region, Size
from textual.layout import ArrangeResult, Layout, WidgetPlacement
from textual.message import Message
from textual.widget import Widget

from engine.api.events import Event, Quantized, Recached, Switched
from engine.api.snapshot import Snapshot
from minichat.ui.monitor.arrange import EVENTS, KVMAP, PANES, QUEUES, Place, arrange
from minichat.ui.monitor.bindings import KEYS
from minichat.ui.monitor.events import EventLog
from minichat.ui.monitor.experts import Experts
from minichat.ui.monitor.kvmap import KVMap
from minichat.ui.monitor.latency import Latency
from minichat.ui.monitor.owners import Owner
from minichat.ui.monitor.pane import Pane
from minichat.ui.monitor.queues import Queues
from minichat.ui.monitor.rates import RateGraphs
from minichat.ui.panes.keybar import HintsChanged
from minichat.ui.switches import changed_switches, named


class _Places(Layout):
    """A Textual layout that places the panes with `arrange`."""

    name = "monitor"

    def arrange(
        self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True
    ) -> ArrangeResult:
        assert isinstance(parent, MonitorPanel)
        places = parent.places(size)
        return [
            WidgetPlacement(Region(*places[pane.number]), NULL_OFFSET, NULL_SPACING, pane)
            for pane in children
            if isinstance(pane, Pane) and pane.number in places
        ]


class MonitorPanel(Widget):
    """Passes snapshots and events to its visible panes."""

    DEFAULT_CSS = """
    MonitorPanel { width: 1fr; height: 1fr; overflow: hidden; }
    """
    BINDINGS: ClassVar[list[BindingType]] = KEYS

    class RateRequested(Message):
        """The user wants faster or slower updates."""

        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    class LeaveRequested(Message):
        """The user leaves the monitor for the prompt."""

    def __init__(self, *, ascii: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self.kvmap, self.queues = KVMap(ascii=ascii), Queues(ascii=ascii)
        self.rates, self.latency, self.event_log = (
            RateGraphs(ascii=ascii),
            Latency(ascii=ascii),
            EventLog(ascii=ascii),
        )
        self.experts = Experts(ascii=ascii)
        self.panes: dict[int, Pane] = {
            pane.number: pane
            for pane in (self.kvmap, self.queues, self.rates, self.latency, self.event_log, self.experts)
        }
        self.maximized: int | None = None
        self.paused = False
        self._cut = ""
        self._places = _Places()
        self._newest: tuple[Snapshot, Mapping[int, Owner]] | None = None
        self._latest: tuple[Snapshot, Mapping[int, Owner]] | None = None  # none since a pause
        self._placed: Mapping[int, Place] = {}

    def compose(self) -> ComposeResult:
        yield from self.panes.values()

    @property
    def layout(self) -> Layout:
        return self._places

    def update_from(self, snapshot: Snapshot, owners: Mapping[int, Owner]) -> None:
        self._newest = snapshot, owners
        self.rates.remember(snapshot)
        self.experts.remember(snapshot)
        self.event_log.remember(snapshot)
        self._show_newest()

    def forget(self) -> None:
        """Show no figures until the next engine has sent a snapshot. The graphs keep their history."""
        self._latest = self._newest = None
        for pane in self.panes.values():
            pane.snapshot, pane.flag = None, ""
        self._place_panes()
        self.draw()

    def add_events(self, events: Sequence[Event]) -> None:
        for event in events:
            self.add_event(event)

    def add_event(self, event: Event) -> None:
        self.event_log.add(event)
        match event:
            case Switched(at=at, name=name, on=on):
                self.rates.mark(at, named(name, on))
            case Quantized(at=at, scheme=scheme, error=""):
                self.rates.mark(at, f"weights {scheme}")
            case Recached(at=at, scheme=scheme):
                self.rates.mark(at, f"cache {scheme}")

    def _show_newest(self) -> None:
        if not self.paused:
            self._latest = self._newest
            self._show_latest()

    def _show_latest(self) -> None:
        if self._latest is None or not self.display:
            return
        self._update_panes(*self._latest)
        if self.places(self.size) != self._placed:  # a pane has more to show now
            self._place_panes()
            self._update_panes(*self._latest)

    def _update_panes(self, snapshot: Snapshot, owners: Mapping[int, Owner]) -> None:
        flag = ", ".join(changed_switches(snapshot.switches))
        for pane in self.panes.values():
            pane.flag = ""
            if pane.display:
                pane.flag, flag = flag, ""  # shown by the first visible pane only
                pane.update_from(snapshot, owners)

    def maximize(self, pane: int | None) -> None:
        """Show one pane only; None shows all that fit."""
        self.maximized = pane
        self._lay_out()
        if pane is not None:
            self.panes[pane].focus()

    def on_resize(self) -> None:
        self._lay_out()

    def on_show(self) -> None:
        self._show_latest()

    def _lay_out(self) -> None:
        self._place_panes()
        self._show_latest()

    def _place_panes(self) -> None:
        self._placed = self.places(self.size)
        for number, pane in self.panes.items():
            pane.display = number in self._placed
            pane.left_out = ""
        missing = [
            str(number)
            for number in PANES
            if number not in self._placed and self.panes[number].useful_lines != 0
        ]
        if missing and self.maximized is None:
            self.panes[max(self._placed)].left_out = f"{' '.join(missing)} hidden"
        self.kvmap.refresh(layout=True)  # on a child, since the panel's own layout is cached

    def places(self, size: Size) -> dict[int, Place]:
        """Where each pane is. A pane with little to show leaves its lines to the others."""
        useful_lines = {number: pane.useful_lines for number, pane in self.panes.items()}
        known = {number: lines for number, lines in useful_lines.items() if lines is not None}
        return arrange(size.width, size.height, self.maximized, known)

    def focus_first(self) -> None:
        """Focus the first pane, when the user goes to the monitor."""
        self.panes[self.maximized or KVMAP].focus()

    # Keys

    def action_maximize(self, pane: int) -> None:
        self.maximize(None if self.maximized == pane else pane)

    def action_rate(self, by: int) -> None:
        self.post_message(self.RateRequested(by))

    def action_pause(self) -> None:
        self.paused = not self.paused
        self._note()
        self._show_newest()
        self.post_message(HintsChanged())

    def show_cut(self, cut: str) -> None:
        """Show how old the figures are while the link to the engine is down; empty: it is up."""
        if cut != self._cut:
            self._cut = cut
            self._note()

    def _note(self) -> None:
        """Show in each pane that its figures are not current."""
        for pane in self.panes.values():
            pane.pause(self.paused)
            pane.note = self._cut or ("paused" if self.paused else "")
        self.draw()

    def draw(self) -> None:
        """Draw what has changed apart from the snapshot."""
        for pane in self.panes.values():
            pane.draw()

    def action_window(self) -> None:
        self.rates.next_window()
        if not self.rates.display or self.rates.useful_lines is not None:  # no graph shows it
            self.notify(f"The graphs will show {self.rates.window}", timeout=2)

    def action_order(self) -> None:
        self._change_map(self.kvmap.next_order)

    def action_tint(self) -> None:
        self._change_map(self.kvmap.next_tint)

    def action_replica(self) -> None:
        if not self.kvmap.next_replica():
            self.notify("The engine has no other replica", severity="warning")

    def action_letters(self) -> None:
        if self.kvmap.mixes:
            self._change_map(self.kvmap.toggle_letters)
        else:
            self.notify("The map has only letters on this terminal", severity="warning")

    def _change_map(self, change: Callable[[], str]) -> None:
        """Change how the map is drawn, and say so if it looks the same."""
        before = self.kvmap.picture
        how = change()
        if not self.kvmap.display or self.kvmap.picture == before:
            self.notify(f"The map will show blocks {how}", timeout=2)

    def action_filter(self) -> None:
        self._shows(EVENTS)
        self.event_log.filter()

    def action_abort(self) -> None:
        if self._shows(QUEUES) and not self.queues.abort_selected():
            self.notify("There is no request to abort", severity="warning")

    def action_preempt(self) -> None:
        if not self._shows(QUEUES):
            return
        if self.queues.selected is not None and not self.queues.selected_runs:
            self.notify("The selected request is not running", severity="warning")
        elif not self.queues.preempt_selected():
            self.notify("There is no request to preempt", severity="warning")

    def _shows(self, pane: int) -> bool:
        """Whether this pane was visible. If not, maximize it: its keys act on what it shows."""
        if visible := self.panes[pane].display:
            return visible
        self.maximize(pane)
        return visible

    def action_leave(self) -> None:
        if self.maximized in PANES:
            self.maximize(None)
        else:
            self.post_message(self.LeaveRequested())
