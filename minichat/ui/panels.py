"""The panels beside the chats: at most one drawer and one side panel."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from textual.widget import Widget

from engine.api.snapshot import Snapshot
from minichat.ui.engine_watch import EngineWatch
from minichat.ui.layout import Layout


class Dock(Enum):
    """Where a panel is placed, and what shows it."""

    DRAWER = "drawer"  # beside the chats, one at a time; a key opens and closes it
    SIDE = "side"  # at the right, shown automatically if it fits


@dataclass(eq=False, slots=True)
class Panel:
    """A docked widget. `see` is called with each snapshot while it is visible."""

    dock: Dock
    widget: Widget
    see: Callable[[Snapshot], None] | None = None
    line: Widget | None = None  # shown above the prompt while the widget is hidden

    def see_snapshot(self, snapshot: Snapshot) -> None:
        if self.see is not None:
            self.see(snapshot)


class Panels:
    """Opens and closes the panels. The screen that composes them does the layout."""

    def __init__(self, engine: EngineWatch) -> None:
        self.side_requested: bool | None = None  # None: if it fits
        self.side_fills = False  # it also takes the columns of the chats and the drawer
        self.all: list[Panel] = []
        self._engine = engine
        self._open: Panel | None = None  # the drawer
        self._side: Panel | None = None  # the side panel to show, if any

    def bind(
        self, panels: Sequence[Panel], chats: Widget, prompt: Widget, changed: Callable[[], None]
    ) -> None:
        """Attach the panels of a screen. `changed` is called when one opens or closes."""
        self.all, self._chats, self._prompt, self._changed = list(panels), chats, prompt, changed
        self._side = next((each for each in self.all if each.dock is Dock.SIDE), None)
        for each in self.all:
            each.widget.display = False

    @property
    def drawer_open(self) -> bool:
        return self._open is not None and not self.side_fills

    @property
    def chats_shown(self) -> bool:
        """Whether no panel covers them."""
        return self._chats.display

    def lay_out(self, plan: Layout) -> None:
        """Apply a layout."""
        for each in self.all:
            if each.dock is Dock.DRAWER:
                each.widget.styles.width = plan.drawer_columns or "1fr"
            elif each.dock is Dock.SIDE:
                each.widget.styles.width = plan.side_columns or "1fr"
                self._display(each, plan.side and each is self._side)

    def toggle(self, widget: Widget) -> None:
        """Open or close the panel, as its key does."""
        panel = self._of(widget)
        if panel.dock is Dock.SIDE:
            self._toggle_side(panel)
        else:
            self._toggle_drawer(panel)

    def go_to(self, widget: Widget) -> None:
        """Open a side panel and focus it."""
        self._open_side(self._of(widget))
        widget.focus()

    def leave(self) -> None:
        """Return to the prompt and the chat, and close the drawer."""
        self._prompt.focus()
        if self.side_fills:
            self.fill(False)
        elif not self.close_drawer():
            self.show_chat()

    def to_chat(self) -> None:
        """Return to the prompt. The drawer stays open unless it covers the chat."""
        self._prompt.focus()
        self.show_chat()

    def fill(self, fills: bool) -> None:
        """Make the side panel take the whole width, or restore the chats and the drawer."""
        if fills is not self.side_fills:
            self.side_fills = fills
            self._show(self._open)

    def close_drawer(self) -> bool:
        """Close the drawer. Return whether one was open."""
        if self._open is None or self.side_fills:
            return False
        if self._open.widget.has_focus_within:
            self._prompt.focus()  # first: the focused widget is about to be hidden
        self._show(None)
        return True

    def show_chat(self) -> bool:
        """Show the chat: hide what covers it on a small screen. Return whether something did."""
        self.fill(False)
        if self._chats.display:
            return False
        if not self.close_drawer():
            self._prompt.focus()  # first: the focused widget may be about to be hidden
            self.side_requested = False
            self._changed()
        return True

    def close(self, part: Widget) -> Widget | None:
        """Close and return the open panel that contains the widget, if any."""
        panel = next((each for each in self.all if each.widget in part.ancestors_with_self), None)
        if panel is None or not panel.widget.display:
            return None
        self._prompt.focus()  # first: the focused widget is about to be hidden
        if panel.dock is Dock.DRAWER:
            self._show(None)
        else:
            self._close_side()
        return panel.widget

    def _of(self, widget: Widget) -> Panel:
        return next(each for each in self.all if each.widget is widget)

    def _toggle_drawer(self, panel: Panel) -> None:
        """Open the drawer and focus it; if it already has the focus, close it."""
        self.fill(False)
        opening = panel is not self._open or not _left_by_its_key(panel.widget)
        self._show(panel if opening else None)
        (panel.widget if opening else self._prompt).focus()

    def _toggle_side(self, panel: Panel) -> None:
        if panel is self._side and panel.widget.display:
            self._prompt.focus()  # first: the focused widget is about to be hidden
            self._close_side()
            return
        self._open_side(panel)
        if not self._chats.display:
            self._prompt.focus()  # it is still shown, so that is where typed text goes

    def _close_side(self) -> None:
        self.side_requested = self.side_fills = False
        self._show(self._open)

    def _open_side(self, panel: Panel) -> None:
        """Open a side panel. A drawer is closed if both do not fit."""
        if panel is not self._side:
            self.fill(False)
        self._side, self.side_requested = panel, True
        self._changed()
        if not panel.widget.display:
            self.close_drawer()

    def _show(self, panel: Panel | None) -> None:
        """Show this drawer only."""
        self._open = panel
        for each in self.all:
            if each.dock is Dock.DRAWER:
                self._display(each, each is panel and not self.side_fills)
        self._changed()

    def _display(self, panel: Panel, visible: bool) -> None:
        panel.widget.display = visible
        if panel.line is not None:
            panel.line.display = not visible
        if panel.see is None:
            return
        if visible:
            self._engine.observe(panel)
        else:
            self._engine.unobserve(panel)


def _left_by_its_key(widget: Widget) -> bool:
    """Whether its key closes it: it has the focus, or cannot get it."""
    nodes = widget.walk_children(Widget, with_self=True)
    return widget.has_focus_within or not any(each.focusable for each in nodes)
