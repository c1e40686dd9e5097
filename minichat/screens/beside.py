"""What stands beside the chats: the monitor, and at most one of the drawers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from textual.widget import Widget

from engine.events import Event
from engine.snapshot import Snapshot

if TYPE_CHECKING:
    from minichat.screens.main import MainScreen


class Onlooker(Protocol):
    """Looks at the engine beside the monitor."""

    def see_snapshot(self, snapshot: Snapshot) -> None: ...

    def see_events(self, events: Sequence[Event]) -> None: ...


def decoding(screen: MainScreen) -> None:
    _turn(screen, screen.drawer, screen.drawer.knobs)


def quantization(screen: MainScreen) -> None:
    drawer = screen.quantization
    if not drawer.display:
        screen.onlookers.append(drawer)
        if screen.latest is not None:
            drawer.see_snapshot(screen.latest)
    _turn(screen, drawer, drawer)


def monitor(screen: MainScreen) -> None:
    screen.monitor_wanted = not screen.monitor.display
    if not screen.monitor_wanted:
        screen.prompt.focus()  # first: what has the focus is about to go
    screen.lay_out()
    if screen.monitor.display and not screen.query_one("#panes").display:
        screen.monitor.focus_first()


def to_monitor(screen: MainScreen) -> None:
    screen.monitor_wanted = True
    screen.lay_out()
    screen.monitor.focus_first()


def leave(screen: MainScreen) -> None:
    """Back to the prompt, and to the chat."""
    screen.prompt.focus()
    uncover(screen)


def uncover(screen: MainScreen) -> None:
    """The chat is seen: what stands in its place on a small screen goes."""
    if screen.query_one("#panes").display:
        return
    if screen.drawer.display or screen.quantization.display:
        _show(screen, None)
    else:
        screen.monitor_wanted = False
        screen.lay_out()


def end(screen: MainScreen, failed: Widget) -> Widget | None:
    """Closes the dialog, the drawer or the monitor that the widget is part of."""
    for part in failed.ancestors_with_self:
        if part is screen.app.screen and part is not screen:
            screen.app.pop_screen()
        elif part in (screen.drawer, screen.quantization):
            if part.display:
                _show(screen, None)
        elif part is screen.monitor:
            screen.monitor_wanted = False
            screen.lay_out()
        else:
            continue
        screen.prompt.focus()
        assert isinstance(part, Widget)
        return part
    return None


def _turn(screen: MainScreen, wanted: Widget, field: Widget) -> None:
    """Goes to the drawer, and opens it first; from within, closes it."""
    opening = not (wanted.display and wanted.has_focus_within)
    _show(screen, wanted if opening else None)
    (field if opening else screen.prompt).focus()


def _show(screen: MainScreen, wanted: Widget | None) -> None:
    for each in (screen.drawer, screen.quantization):
        each.display = each is wanted
    if not screen.quantization.display and screen.quantization in screen.onlookers:
        screen.onlookers.remove(screen.quantization)
    screen.decoding.turn()
    screen.lay_out()
