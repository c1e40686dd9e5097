"""A fault of the program itself ends the part of the screen that has it, never the program.

Textual calls a widget in two ways: it dispatches messages to it (keys, timers, callbacks, what other widgets
post), and asks it for lines. An error in either one would end the program. Here it becomes a line in the log
and a notice.
"""

import asyncio
import logging
import re
import traceback
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

from rich.segment import Segment
from textual.geometry import Region
from textual.message import Message
from textual.message_pump import MessagePump
from textual.strip import Strip
from textual.widget import Widget
from textual.worker import WorkerFailed

from minichat.program import Program
from minichat.ui.transcript.glyphs import one_line

log = logging.getLogger("minichat.app")

_LONGEST = 120  # characters of an error in a notice


class Containment:
    """Takes what widgets raise. The same fault is logged once, however often it comes."""

    def __init__(self, program: Program) -> None:
        self._program, self._app = program, program.app
        self._known: set[tuple[type, str, int | None]] = set()  # faults, and where they are raised
        self.hold_messages(self._app)

    def hold(self, widget: Widget) -> None:
        """Before Textual starts it."""
        self.hold_messages(widget)
        render = widget.render_lines

        def render_lines(crop: Region) -> list[Strip]:
            try:
                return render(crop)
            except Exception as error:
                self.take(error, widget)
                return _instead(widget, crop)

        widget.render_lines = render_lines  # type: ignore[method-assign]

    def hold_messages(self, pump: MessagePump) -> None:
        """A message that cannot be handled is lost; Textual would stop the loop that handles all others."""
        dispatch = pump._dispatch_message

        async def dispatch_message(message: Message) -> None:
            try:
                await dispatch(message)
            except Exception as error:
                self._app._handle_exception(error)

        pump._dispatch_message = dispatch_message  # type: ignore[method-assign]

    @contextmanager
    def each(self) -> Iterator[None]:
        """Around one of several parts that learn the same thing, so that the others learn it, too."""
        try:
            yield
        except Exception as error:
            self.take(error)

    def take_from_loop(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A task that nobody awaits has failed, or a callback.

        A generator that cannot be closed belonged to a task that is gone: no part of the screen has failed.
        """
        error = context.get("exception")
        if isinstance(error, Exception) and not _of_a_generator(context):
            self.take(error)
        else:
            log.error("%s", context["message"], exc_info=error)

    def take(self, error: Exception, widget: Widget | None = None) -> None:
        """Logs it, closes the part where the screen can do without it, and says so."""
        if isinstance(error, WorkerFailed) and isinstance(error.error, Exception):
            error = error.error
        self._tell_tests(error)
        frames = traceback.extract_tb(error.__traceback__)
        last = frames[-1] if frames else None
        fault = (type(error), last.filename if last else "", last.lineno if last else 0)
        fresh = fault not in self._known
        self._known.add(fault)
        if fresh:
            log.error("a part of the screen failed", exc_info=error)
        widget = _raised_in(error) or widget
        self._app.call_later(self._end, widget, f"{type(error).__name__}: {error}", fresh)

    def _end(self, widget: Widget | None, error: str, fresh: bool) -> None:
        part = self._close(widget) if widget is not None else None
        if part is None and not fresh:
            return
        failed = part or widget
        name = _name(failed) if failed else "a part of the program"
        ending = " and is closed" if part else ""
        error = one_line(error)[:_LONGEST]
        program = self._program
        program.complain(f"{name} failed{ending} ({error}): {program.paths.log} has the traceback")

    def _close(self, failed: Widget) -> Widget | None:
        """The dialog or the panel that the widget is part of."""
        dialog, main = self._app.screen, self._program.main
        if len(self._app.screen_stack) > 1 and dialog in failed.ancestors_with_self:
            self._app.pop_screen()
            main.prompt.focus()
            return dialog
        return main.panels.close(failed)

    def _tell_tests(self, error: Exception) -> None:
        """`run_test` raises it in the end, as it would without us."""
        if self._app._exception is None:
            self._app._exception = error
            self._app._exception_event.set()


def _of_a_generator(context: dict[str, Any]) -> bool:
    """Whether the loop could not close a generator: by itself, or in a task of its own."""
    coroutine = getattr(context.get("future"), "get_coro", lambda: None)()
    return "asyncgen" in context or isinstance(coroutine, _CLOSING)


async def _generator() -> AsyncGenerator[None]:
    yield


def _type_of_closing() -> type:
    """It has no name in Python."""
    closing = _generator().aclose()
    closing.close()
    return type(closing)


_CLOSING = _type_of_closing()


def _raised_in(error: Exception) -> Widget | None:
    """The widget whose code failed: the innermost one that the error came through."""
    selves = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    return next((each for each in reversed(list(selves)) if isinstance(each, Widget)), None)


def _instead(widget: Widget, crop: Region) -> list[Strip]:
    """A widget's lines where it cannot make them."""
    blank = Strip.blank(crop.width, widget.rich_style)
    sentence = Strip([Segment(f" {_name(widget)} cannot be drawn", widget.rich_style)])
    first = [sentence.adjust_cell_length(crop.width, widget.rich_style)] if crop.y == 0 else []
    return [*first, *[blank] * (crop.height - len(first))]


def _name(widget: Widget) -> str:
    """A class's name as words."""
    return "the " + re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(widget).__name__).lower()
