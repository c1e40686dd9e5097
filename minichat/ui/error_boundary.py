"""An error in the program closes the part of the screen where it happened, never the program.

Textual calls a widget in two ways: it dispatches messages (keys, timers, callbacks, other widgets' messages),
and it renders lines. An exception in either would end the program. Here it is logged and shown as a notice.
"""

import asyncio
import logging
import re
import traceback
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.segment import Segment
from textual.app import App
from textual.errors import NoWidget
from textual.events import Event, MouseDown
from textual.geometry import Region
from textual.message import Message
from textual.message_pump import MessagePump
from textual.strip import Strip
from textual.widget import Widget
from textual.worker import WorkerFailed

from minichat.chats.errors import StoreError
from minichat.program import Program
from minichat.ui.transcript.glyphs import one_line

log = logging.getLogger("minichat.app")
FAILED = "a part of the screen failed"  # in the log; tests fail if they find it

_LONGEST = 120  # characters of an error in a notice


class ErrorBoundary:
    """Handles exceptions of widgets. The same error is logged once, however often it occurs."""

    def __init__(self, program: Program) -> None:
        self._program, self._app = program, program.app
        self._known: set[tuple[type, str, int | None]] = set()  # error type and where it was raised
        self.guard_messages(self._app)

    def guard(self, widget: Widget) -> None:
        """Wrap a widget before Textual starts it."""
        self.guard_messages(widget)
        render = widget.render_lines

        def render_lines(crop: Region) -> list[Strip]:
            try:
                return render(crop)
            except Exception as error:
                self.handle(error, widget)
                return _placeholder(widget, crop)

        widget.render_lines = render_lines  # type: ignore[method-assign]

    def guard_messages(self, pump: MessagePump) -> None:
        """Drop a message whose handler fails. Textual would stop the widget's message loop."""
        dispatch = pump._dispatch_message

        async def dispatch_message(message: Message) -> None:
            try:
                await dispatch(message)
            except Exception as error:
                self._app._handle_exception(error)

        pump._dispatch_message = dispatch_message  # type: ignore[method-assign]

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Wrap a call to one of several subscribers, so that the others are still called."""
        try:
            yield
        except Exception as error:
            self.handle(error)

    def handle_from_loop(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle the failure of a callback, or of a task that is not awaited.

        A generator that cannot be closed belonged to a finished task: no part of the screen has failed. Nor
        has one if a result comes for a wait that was canceled in the same turn of the loop: anyio does not
        check this when a Unix socket becomes readable.
        """
        error = context.get("exception")
        if _too_late(context):
            return
        if isinstance(error, Exception) and not _of_a_generator(context):
            self.handle(error)
        else:
            log.error("%s", context["message"], exc_info=error)

    def handle(self, error: Exception, widget: Widget | None = None, *, asked: bool = False) -> None:
        """Log the error, close the part of the screen if it can be closed, and show a notice.

        `asked`: by a user's action, whose notice is shown each time.
        """
        if isinstance(error, WorkerFailed) and isinstance(error.error, Exception):
            error = error.error
        if isinstance(error, StoreError):  # no defect: another screen may have deleted the chat
            self._app.call_later(self._program.report, str(error))
            return
        frames = traceback.extract_tb(error.__traceback__)
        last = frames[-1] if frames else None
        fault = (type(error), last.filename if last else "", last.lineno if last else 0)
        fresh = fault not in self._known
        self._known.add(fault)
        if fresh:
            log.error(FAILED, exc_info=error)
        widget = _raised_in(error) or widget
        self._app.call_later(self._end, widget, f"{type(error).__name__}: {error}", fresh or asked)

    def _end(self, widget: Widget | None, error: str, told: bool) -> None:
        part = self._close(widget) if widget is not None else None
        if part is None and not told:
            return
        failed = part or widget
        name = _name(failed) if failed else "a part of the program"
        ending = " and was closed" if part else ""
        error = one_line(error)[:_LONGEST]
        program = self._program
        program.report(f"{name} failed{ending}: {error}. See the traceback in {program.paths.log}")

    def _close(self, failed: Widget) -> Widget | None:
        """Close and return the dialog or the panel that contains the widget."""
        dialog, main = self._app.screen, self._program.main
        if len(self._app.screen_stack) > 1 and dialog in failed.ancestors_with_self:
            self._app.pop_screen()
            main.prompt.focus()
            return dialog
        return main.panels.close(failed)


def on_removed(app: App[object], event: Event) -> bool:
    """Whether the mouse is pressed on a widget removed since the last layout: Textual reads its parent."""
    if isinstance(event, MouseDown) and not event.is_forwarded:
        with suppress(NoWidget):
            return not app.get_widget_at(event.x, event.y)[0].is_attached
    return False


def _of_a_generator(context: dict[str, Any]) -> bool:
    """Whether asyncio failed to close a generator, directly or in a task."""
    future = context.get("future")
    coroutine = future.get_coro() if isinstance(future, asyncio.Task) else None
    return "asyncgen" in context or isinstance(coroutine, _CLOSING)


def _too_late(context: dict[str, Any]) -> bool:
    """Whether a callback of the loop has set the result of a canceled future."""
    callback = getattr(context.get("handle"), "_callback", None)
    future = getattr(callback, "__self__", None)
    return (
        isinstance(context.get("exception"), asyncio.InvalidStateError)
        and isinstance(future, asyncio.Future)
        and future.cancelled()
    )


async def _generator() -> AsyncGenerator[None]:
    yield


def _type_of_closing() -> type:
    """Return the type of `aclose()` coroutines, which has no name in Python."""
    closing = _generator().aclose()
    closing.close()
    return type(closing)


_CLOSING = _type_of_closing()


def _raised_in(error: Exception) -> Widget | None:
    """The widget whose code failed: the innermost one in the traceback."""
    selves = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    return next((each for each in reversed(list(selves)) if isinstance(each, Widget)), None)


def _placeholder(widget: Widget, crop: Region) -> list[Strip]:
    """The lines shown in place of a widget that cannot render."""
    blank = Strip.blank(crop.width, widget.rich_style)
    sentence = Strip([Segment(f" cannot draw {_name(widget)}", widget.rich_style)])
    first = [sentence.adjust_cell_length(crop.width, widget.rich_style)] if crop.y == 0 else []
    return [*first, *[blank] * (crop.height - len(first))]


def _name(widget: Widget) -> str:
    """The name of the widget's class as words."""
    return "the " + re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(widget).__name__).lower()
