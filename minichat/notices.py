"""Notices: each is shown once, and can be ended when it is no longer true."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from textual.app import App
from textual.notifications import SeverityLevel
from textual.widgets._toast import Toast

from minichat.plural import plural

_PROBLEMS = 4  # shown at once
_LONG = 600.0  # seconds; the notice ends with what it is about
_NO_NAMES = frozenset("a an another cannot chat it no nothing the there these this unknown".split())


def sentences(problems: Sequence[object]) -> list[str]:
    """The notices of these problems: of the first few, since each may take a quarter of a small screen."""
    found = [str(each) for each in problems[:_PROBLEMS]]
    if (rest := len(problems) - _PROBLEMS) > 0:
        found.append(f"{plural(rest, 'more problem')}: fix these first")
    return found


def capitalized(sentence: str) -> str:
    """The sentence with a capital letter, unless it begins with a name, as of a file or a field."""
    first = sentence.partition(" ")[0]
    return sentence[0].upper() + sentence[1:] if first in _NO_NAMES else sentence


class Notices(App[object]):
    """An app that does not repeat a visible notice."""

    _noticed = "", 0.0  # the last notice, and when it disappears

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a notice. If it repeats the last one, which is still visible, that one only stays longer.

        Brackets in it are text.
        """
        (last, until), now = self._noticed, time.monotonic()
        seconds = self.NOTIFICATION_TIMEOUT if timeout is None else timeout
        if message == last and now < until - seconds / 2:
            return
        if message == last and now < until:
            self.end_notice(message)
        self._noticed = message, now + seconds
        super().notify(message, title=title, severity=severity, timeout=timeout, markup=markup)

    @property
    def last_notice(self) -> str:
        """The text of the last notice, visible or not."""
        return self._noticed[0]

    def end_notice(self, message: str) -> None:
        """Remove the notices with this text. The others stay."""
        if self._noticed[0] == message:
            self._noticed = "", 0.0  # the next one repeats nothing that is visible
        for toast in self.screen_stack[0].query(Toast) if self.screen_stack else ():  # none: it is closing
            if toast._notification.message == message:
                toast._expire()
        for each in [each for each in self._notifications if each.message == message]:  # shown by a dialog
            self._unnotify(each, refresh=False)

    @contextmanager
    def late_notice(self, words: Callable[[], str], after: float) -> Iterator[None]:
        """Show what the work inside waits for, if it takes longer than `after` seconds, until it ends."""
        shown: list[str] = []

        def show() -> None:
            shown.append(words())
            self.notify(shown[0], timeout=_LONG)

        late = self.set_timer(after, show)
        try:
            yield
        finally:
            late.stop()
            for each in shown:
                self.end_notice(each)

    def clear_notifications(self) -> None:
        self._noticed = "", 0.0
        super().clear_notifications()
        self.screen_stack[0].query("ToastHolder").remove()  # Textual would leave an empty row of each
