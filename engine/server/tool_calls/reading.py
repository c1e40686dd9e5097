"""A reply's text as it arrives, for parsers that read it as if it were complete.

A parser is a generator. It yields where it needs more text, so it keeps its place between two pieces, and the
result does not depend on how the text was cut. What it has reported stays reported. Each character is looked
at a bounded number of times.
"""

import re
import secrets
from collections.abc import Callable, Generator, Sequence
from string import ascii_letters, digits
from typing import Any, TypeVar

from engine.server.tool_calls.events import (
    CallArguments,
    CallBegin,
    CallEnd,
    ContentPiece,
    Event,
    ReasoningPiece,
)
from engine.text.reasoning import overlap

T = TypeVar("T")
Steps = Generator[None, None, T]
Sink = Callable[[str], object]
_SPACE, _WORD = re.compile(r"\s+"), re.compile(r"[\w.-]+")


def ignore(_: str) -> None:
    """Drop text."""


class Delimiters:
    """Words that a parser searches for."""

    def __init__(self, *words: str) -> None:
        self._words, self._longest = words, max(map(len, words), default=0)
        self.search = re.compile("|".join(map(re.escape, words)) or "(?!)").search

    def begun(self, text: str, start: int, end: int) -> int:
        """Return how many of the last characters between these places may become one of the words."""
        tail = text[max(start, end - self._longest) : end]
        return max((overlap(tail, word) for word in self._words), default=0)


NOTHING = Delimiters()


class ReplyReading:
    """The unread text, and the events so far. `functions`: the schemas of the request's tools, by name."""

    def __init__(self, functions: dict[str, dict[str, Any]], *, short_ids: bool = False) -> None:
        self.functions = functions
        self.thinking = False
        self._short_ids = short_ids
        self._text, self._at, self._end = "", 0, 0  # unread: from `_at` to `_end`
        self._bound: Delimiters | None = None
        self._closed = False  # whether the text continues with a word of the bound at `_end`
        self._found: tuple[Delimiters | None, int] = None, 0  # where the bound was last found in `_text`
        self._ended = self._cut = False
        self._attempt: list[str] | None = None  # the text of a possible call that is no longer in `_text`
        self._from = 0  # where that call starts in `_text`
        self._events: list[Event] = []
        self._arguments: list[str] = []
        self._space: list[str] = []  # white space after content: dropped before a call and after the last one
        self._calls, self._open = 0, False

    # What the reader of a reply calls

    def push(self, text: str) -> None:
        if self._attempt is not None:
            self._attempt.append(self._text[self._from : self._at])
        self._text, self._at, self._from = self._text[self._at :] + text, 0, 0
        self._found = None, 0
        self._measure()

    def end(self, *, cut: bool) -> None:
        self._ended, self._cut = True, cut
        self._measure()

    def close(self) -> None:
        """Finish what is open, after the parser."""
        self.end_call()
        if not self._calls:
            self._add(ContentPiece, "".join(self._space))
        self._space = []

    def events(self) -> list[Event]:
        self._settle()
        events, self._events = self._events, []
        return events

    # What a parser reads

    def knows(self, name: str) -> bool:
        """Whether the request has this function. True if the request's functions are not known."""
        return name in self.functions or not self.functions

    @property
    def was_cut(self) -> bool:
        """Whether all text has been read and a limit ended it."""
        return self._cut and self._at == len(self._text)

    def bound(self, marks: Delimiters | None) -> None:
        """Hide the text from the next of these words on, until the bound is lifted."""
        self._bound = marks
        self._measure()

    def peek(self) -> Steps[str]:
        """Return the next character, or nothing at the end of the text or of the bound."""
        while self._at >= self._end:
            if self._closed or self._ended:
                return ""
            yield
        return self._text[self._at]

    def ahead(self, count: int) -> Steps[str]:
        """Return the next characters, fewer only at the end. They remain unread."""
        while self._end - self._at < count and not (self._closed or self._ended):
            yield
        return self._text[self._at : min(self._at + count, self._end)]

    def skip(self, count: int) -> None:
        self._at += count

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Read what matches the pattern in the text that is here."""
        if found := pattern.match(self._text, self._at, self._end):
            self._at = found.end()
        return found

    def run(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Read and return all text that matches. The pattern is of the form `[...]+`."""
        parts = []
        while (yield from self.peek()) and (found := self.match(pattern)):
            parts.append(found[0])
        return "".join(parts)

    def space(self) -> Steps[str]:
        return (yield from self.run(_SPACE))

    def word(self) -> Steps[str]:
        """Read the name of a function or of an argument."""
        return (yield from self.run(_WORD))

    def take(self, word: str) -> Steps[bool]:
        """Read this word, if it comes next."""
        for length in range(1, len(word) + 1):
            if (yield from self.ahead(length)) != word[:length]:
                return False
        self._at += len(word)
        return True

    def token(self, word: str) -> Steps[bool]:
        """Read this word after white space, if it comes next."""
        yield from self.space()
        return (yield from self.take(word))

    def until(self, marks: Delimiters, sink: Sink) -> Steps[str]:
        """Read up to one of the words and return it, or nothing. The text before it goes to `sink`."""
        while True:
            if found := marks.search(self._text, self._at, self._end):
                self._give(found.start(), sink)
                self._at = found.end()
                return found[0]
            over = self._closed or self._ended
            self._give(self._end - (0 if over else marks.begun(self._text, self._at, self._end)), sink)
            if over:
                return ""
            yield

    def prose(self, marks: Delimiters) -> Steps[str]:
        """Pass text on up to one of the words and return it. What follows is an attempt at a call."""
        mark = yield from self.until(marks, self.say)
        self._attempt, self._from = [], self._at - len(mark)
        return mark

    # What a parser reports

    def attempt(self) -> None:
        """Start an attempt at a call here."""
        self._attempt, self._from = [], self._at

    def reject(self) -> None:
        """End an attempt: what it has read is text."""
        if self._attempt is not None:
            raw = "".join(self._attempt) + self._text[self._from : self._at]
            self._attempt = None
            self.say(raw)

    def say(self, text: str) -> None:
        body = text.rstrip()
        if body:
            self._add(ContentPiece, "".join(self._space) + body)
            self._space = []
        if len(body) < len(text):
            self._space.append(text[len(body) :])

    def think(self, text: str) -> None:
        self._add(ReasoningPiece, text)

    def begin_call(self, name: str) -> None:
        self._settle()
        self._attempt, self._space = None, []
        self._events.append(CallBegin(self._calls, name, self._id()))
        self._calls, self._open = self._calls + 1, True

    def argue(self, text: str) -> None:
        """Add to the call's arguments."""
        self._arguments.append(text)

    def end_call(self) -> None:
        if self._open:
            self._settle()
            self._open = False
            self._events.append(CallEnd(self._calls - 1))

    def _give(self, end: int, sink: Sink) -> None:
        if end > self._at:
            text, self._at = self._text[self._at : end], end
            sink(text)

    def _measure(self) -> None:
        """Find how far a parser may read."""
        self._end, self._closed = len(self._text), False
        if self._bound is None:
            return
        searched, place = self._found
        if searched is not self._bound or place < self._at:
            found = self._bound.search(self._text, self._at)
            place = found.start() if found else self._end
            self._found = self._bound, place
        if place < self._end:
            self._end, self._closed = place, True
        elif not self._ended:
            self._end -= self._bound.begun(self._text, self._at, self._end)

    def _add(self, kind: type[ContentPiece] | type[ReasoningPiece], text: str) -> None:
        if text:
            self._settle()
            self._events.append(kind(text))

    def _settle(self) -> None:
        if self._arguments:
            text, self._arguments = "".join(self._arguments), []
            if text:
                self._events.append(CallArguments(self._calls - 1, text))

    def _id(self) -> str:
        if self._short_ids:
            return "".join(secrets.choice(ascii_letters + digits) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


Parser = Callable[[ReplyReading], Steps[None]]


class CallReader:
    """Reads one reply, piece by piece."""

    def __init__(self, parser: Parser, reading: ReplyReading) -> None:
        self._reading, self._steps = reading, parser(reading)

    @property
    def thinking(self) -> bool:
        """Whether the current text is reasoning, in a format that has both."""
        return self._reading.thinking

    def push(self, text: str) -> Sequence[Event]:
        self._reading.push(text)
        next(self._steps, None)
        return self._reading.events()

    def flush(self, *, cut: bool = False) -> Sequence[Event]:
        """End the reply. `cut`: by a limit, so that a call may be incomplete."""
        self._reading.end(cut=cut)
        next(self._steps, None)
        self._reading.close()
        return self._reading.events()


def enclosed(
    reading: ReplyReading, open: Delimiters, close: Delimiters, call: Callable[[ReplyReading], Steps[bool]]
) -> Steps[None]:
    """Read a reply with calls between two words. `call` returns whether there was one."""
    while (yield from reading.prose(open)):
        reading.bound(close)
        called = yield from call(reading)
        reading.bound(None)
        if called:
            yield from reading.until(close, ignore)
