"""What stands beside the chats: the monitor, and at most one of the drawers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.widget import Widget

if TYPE_CHECKING:
    from minichat.screens.main import MainScreen


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


def _turn(screen: MainScreen, wanted: Widget, field: Widget) -> None:
    """Opens the drawer and goes there; where it is open, closes it."""
    opening = not wanted.display
    for each in (screen.drawer, screen.quantization):
        each.display = opening and each is wanted
    if not screen.quantization.display and screen.quantization in screen.onlookers:
        screen.onlookers.remove(screen.quantization)
    screen.decoding.turn()
    screen.lay_out()
    (field if opening else screen.prompt).focus()
