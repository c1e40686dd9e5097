"""Treat an escape character in pasted text as text, not as the start of a key.

Textual would drop what follows it and interpret that as keys, including Enter. Most terminals strip escapes
from pasted text; some, and tmux, do not.
"""

import logging
import re
import time
from codecs import IncrementalDecoder, getincrementaldecoder
from collections.abc import Callable, Iterable

from textual._xterm_parser import XTermParser
from textual.drivers import linux_driver
from textual.events import Key
from textual.message import Message

# Each key takes a millisecond to handle. This many at once are a paste that the terminal did not mark. Its
# line breaks would send it line by line; one at the end may be the user's Enter.
_LETTER, _INSIDE = r"[^\x00-\x1f\x7f-\x9f]", r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
_BURST = re.compile(rf"\t*{_LETTER}{_INSIDE}{{126,}}{_LETTER}")
_REST = re.compile(rf"{_INSIDE}+{_LETTER}")  # what follows a burst at once belongs to it
_SEQUENCES = re.compile(r"\x1b[^\x1b]*|[^\x1b]+")  # each fails alone
_AT_ONCE = 0.05  # seconds
_REPLY = re.compile(r"\x1b[]PX^_][^\x07\x1b]*$")  # an unfinished answer of the terminal
_ESCAPED = re.compile(r"\x1b(?![][]|[PX^_][^a-z ])[^^]*$")  # Esc and text, but no answer of the terminal
_BEGIN, _END, _ESCAPE, _SHOWN = "\x1b[200~", "\x1b[201~", "\x1b", "␛"


class Pasting:
    """Filters the terminal input, which arrives in arbitrary pieces."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._burst = clock, -_AT_ONCE  # and when the last burst was read
        self._inside = False
        self._before = ""  # the end of the typed input: the start of a paste may be split
        self._held = ""  # a possible start of the end marker
        self._replying = False  # the rest of the terminal's answer follows

    def clean(self, data: str) -> str:
        """Replace escapes inside a paste by their visible symbol."""
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
                cleaned.append(self._marked((typed + begin)[len(self._before) :]))
                self._before = "" if begin else seen[1 - len(_BEGIN) :]
        return "".join(cleaned)

    def _marked(self, typed: str) -> str:
        """Mark long runs of text as pasted."""
        if _ESCAPE in typed:
            self._replying = bool(_REPLY.search(typed))
            return typed
        if self._replying:
            self._replying = "\x07" not in typed
            return typed
        if _ESCAPE in self._before:  # perhaps a split key
            return typed
        now = self._clock()
        follows = now - self._burst < _AT_ONCE
        marked, count = (_REST if follows else _BURST).subn(lambda run: f"{_BEGIN}{run[0]}{_END}", typed)
        self._burst = now if count else self._burst
        return marked


def _cut(text: str) -> str:
    """The start of an end marker at the end of the text, if it is split."""
    lengths = range(len(_END) - 1, 0, -1)
    return next((_END[:length] for length in lengths if text.endswith(_END[:length])), "")


class PasteParser(XTermParser):
    """Textual's parser with the filter."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._pasting = Pasting()
        self._begun = ""  # a sequence of which no key was made yet

    def feed(self, data: str) -> Iterable[Message]:
        if not data:  # the end of input
            yield from super().feed(data)
        for sequence in _SEQUENCES.findall(self._pasting.clean(data)):
            self._begun = read = self._begun + sequence
            try:
                for message in super().feed(sequence):
                    self._begun = ""
                    yield _escape_key(message, read)
            except Exception:
                logging.getLogger(__name__).warning("ignored input: %r", sequence[:80])
                super(XTermParser, self).__init__()  # in the middle of a sequence it cannot continue
                self._begun = ""


def _escape_key(message: Message, sequence: str) -> Message:
    """Esc, if text followed it so closely that Textual took both for one sequence and made a "^" of it."""
    is_hat = isinstance(message, Key) and message.character == "^"
    return Key("escape", _ESCAPE) if is_hat and _ESCAPED.match(sequence) else message


def _lenient(encoding: str) -> Callable[[], IncrementalDecoder]:
    """Decoders that replace bytes which are no text. Textual's would end the program."""
    return lambda: getincrementaldecoder(encoding)(errors="replace")


def install() -> None:
    """Replace names that the driver only imports, because it does not allow to configure it."""
    setattr(linux_driver, "XTermParser", PasteParser)  # noqa: B010
    setattr(linux_driver, "getincrementaldecoder", _lenient)  # noqa: B010
