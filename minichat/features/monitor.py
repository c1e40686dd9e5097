"""F2: the monitor beside the chats, or one engine line while it is hidden."""

from collections.abc import Sequence
from typing import Self

from textual import on
from textual.widget import Widget

from engine.api.commands import Abort, Preempt
from engine.api.events import Event
from engine.api.snapshot import Snapshot
from minichat.features.feature import Context, Feature, HelpSection, Leaving, PanelSpec, ScreenCommand
from minichat.ui import sending
from minichat.ui.monitor import EngineLine, KVMap, MonitorPanel, Queues
from minichat.ui.monitor.cells import Order, Tint
from minichat.ui.panels import Dock


class MonitorSide(MonitorPanel):
    """Follows the engine even while hidden, because rates and events have a history."""

    def __init__(self, context: Context) -> None:
        super().__init__(ascii=context.program.start.ascii, id="monitor")
        self.context = context
        screen = context.program.settings.screen
        self.kvmap.order = Order.SESSION if screen.map_order == "session" else Order.PHYSICAL
        self.kvmap.tint = Tint(screen.map_colour)
        if not screen.monitor:
            context.panels.side_requested = False
        alone = Leaving(lambda: self.maximized is not None and self.display, lambda: self.maximize(None))
        context.leaving.append(alone)
        context.signals.arranged.connect(self._arranged)
        context.signals.snapshot.connect(self._see_snapshot)
        context.signals.owned.connect(self.draw)
        context.signals.replaced.connect(self._another_engine)
        context.signals.events.connect(self._see_events)

    def focus(self, scroll_visible: bool = True) -> Self:
        self.focus_first()
        return self

    def maximize(self, pane: int | None) -> None:
        """Let a maximized pane fill the screen."""
        super().maximize(pane)
        self.context.panels.fill(pane is not None)

    def _arranged(self) -> None:
        """Restore the pane if the chat or a drawer has taken its room back."""
        if self.maximized is not None and not self.context.panels.side_fills:
            super().maximize(None)

    def _see_snapshot(self, snapshot: Snapshot) -> None:
        owners = self.context.engine.owners
        self.update_from(snapshot, owners)
        self.context.part(EngineLine).update_from(snapshot, owners)  # it may be shown before the next one

    def _another_engine(self) -> None:
        self.event_log.keep_owners(self.context.engine.owners)
        self.forget()
        self.context.part(EngineLine).forget()

    def _see_events(self, events: Sequence[Event]) -> None:
        self.add_events(events)
        self.show_cut(self.context.engine.cut)
        self.context.part(EngineLine).note = self.context.engine.cut

    @on(MonitorPanel.RateRequested)
    def _change_rate(self, event: MonitorPanel.RateRequested) -> None:
        rate = self.context.program.poller.change_rate(event.by)
        self.notify(f"The monitor updates {rate:g} time{'s' * (rate != 1)} per second", timeout=2)

    @on(MonitorPanel.LeaveRequested)
    def _leave(self) -> None:
        self.context.panels.leave()

    @on(Queues.AbortRequested)
    def _abort(self, event: Queues.AbortRequested) -> None:
        sending.ask(self.context, self.context.program.backend.send(Abort((event.request,))))

    @on(Queues.PreemptRequested)
    def _preempt(self, event: Queues.PreemptRequested) -> None:
        sending.ask(self.context, self.context.program.backend.send(Preempt(event.request)))

    @on(KVMap.Pointed)
    def _point(self, event: KVMap.Pointed) -> None:
        self.context.signals.pointed(event.blocks)


def _line(context: Context) -> Widget:
    return EngineLine(ascii=context.program.start.ascii, id="engine-line")


def toggle(context: Context) -> None:
    context.panels.toggle(context.part(MonitorSide))


def go(context: Context) -> None:
    context.panels.go_to(context.part(MonitorSide))


MONITOR = Feature(
    name="monitor",
    title="Monitor",
    commands=(
        ScreenCommand(
            "view.monitor",
            "View",
            "Toggle the engine monitor",
            toggle,
            "f2",
            "monitor",
            also="stats statistics gpu internals",
            greeting="shows the engine at work",
        ),
        ScreenCommand("view.to_monitor", "View", "Focus the monitor", go, "alt+m"),
    ),
    panel=PanelSpec(MonitorSide, Dock.SIDE, line=_line),
    help=(
        HelpSection(
            "In the monitor ({view.to_monitor})",
            (
                (
                    "{monitor.pane_1 monitor.pane_2 monitor.pane_3 "
                    "monitor.pane_4 monitor.pane_5 monitor.pane_6}",
                    "maximize a pane, or show all",
                ),
                (
                    "{monitor.faster} {monitor.slower}  {monitor.pause}",
                    "update faster, slower; pause",
                ),
                (
                    "{monitor.order}  {monitor.colour}  {monitor.letters}",
                    "map: order, color by, letters",
                ),
                ("{monitor.replica}", "map: the next replica of a fleet"),
                (
                    "{monitor.left monitor.right monitor.up monitor.down}",
                    "map: highlight the text of these blocks in its chats",
                ),
                ("{monitor.up monitor.down}", "lists: another line"),
                ("{monitor.zoom}", "map: zoom to blocks, their owners and content"),
                ("{monitor.window}", "graphs: 30 seconds, 2 or 10 minutes"),
                ("{monitor.abort}  {monitor.preempt}", "abort or preempt the selected request"),
                ("", "a * marks a new phase"),
                ("{monitor.filter}", "filter the events"),
            ),
        ),
    ),
    keyed=(("monitor", MonitorPanel), ("monitor", KVMap)),
    css="""
    #monitor { height: 1fr; border-left: vkey $panel; }
    App.-ascii #monitor { border-left: ascii $frame; }
    #engine-line { height: 1; color: $text-muted; background: $surface; }
    """,
)
