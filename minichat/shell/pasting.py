"""Pasted text as the terminal sends it: an escape in it is a character, not the beginning of a key.

Textual would swallow what comes behind it, and play that as keys, Enter among them. Most terminals take
escapes out of what they paste; some, and tmux, do not.
"""

from collections.abc import Iterable

from textual._xterm_parser import XTermParser
from textual.drivers import linux_driver
from textual.message import Message

_BEGIN, _END, _ESCAPE, _SHOWN = "\x1b[200~", "\x1b[201~", "\x1b", "␛"


class Pasting:
    """Goes along with what is read, in whatever pieces it comes."""

    def __init__(self) -> None:
        self._inside = False
        self._before = ""  # the last of what was typed: the beginning of a paste may be cut
        self._held = ""  # what may become the end of one

    def clean(self, data: str) -> str:
        """The same, with the escapes inside a paste as their symbol."""
        cleaned, data, self._held = [], self._held + data, ""
        while data:
            if self._inside:
                body, end, data = data.partition(_END)
                self._inside = not end
                if not end:
                    self._held = _cut(body)
                    body = body.removesuffix(self._held)
                cleaned.append(body.replace(_ESCAPE, _SHOWN) + end)
            else:
                seen = self._before + data
                typed, begin, data = seen.partition(_BEGIN)
                self._inside = bool(begin)
                cleaned.append((typed + begin)[len(self._before) :])
                self._before = "" if begin else seen[1 - len(_BEGIN) :]
        return "".join(cleaned)


def _cut(text: str) -> str:
    """The beginning of a paste's end, where the text stops in the middle of one."""
    lengths = range(len(_END) - 1, 0, -1)
    return next((_END[:length] for length in lengths if text.endswith(_END[:length])), "")


class PasteParser(XTermParser):
    """Textual's, which reads a paste to its end."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._pasting = Pasting()

    def feed(self, data: str) -> Iterable[Message]:
        cleaned = self._pasting.clean(data)
        return () if data and not cleaned else super().feed(cleaned)  # nothing at all is the end


def install() -> None:
    """The driver makes its parser itself, and asks nobody which."""
    setattr(linux_driver, "XTermParser", PasteParser)  # noqa: B010 (a name that it only imports)
