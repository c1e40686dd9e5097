"""Text out of tokens, one at a time, never half a character."""

import copy
from codecs import utf_8_decode
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Protocol, Self

import tokenizers

from engine.text.pieces import PieceTable, token_name

TAIL = 4  # tokens of a text that can still matter to the next: a character has at most four bytes


class Detokenizer(Protocol):
    """Takes a reply's tokens and gives its text as it becomes certain."""

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is still open."""

    def flush(self) -> str:
        """What is left at the end: a character that was never completed reads U+FFFD."""

    def copy(self) -> Self:
        """The same place in the same text, to be continued on its own."""


class ByteDetokenizer:
    """For tokens that are bytes: a table, and a decoder that is asked only where a character is split."""

    __slots__ = ("_begun", "_open", "_pieces")

    def __init__(self, pieces: PieceTable, after: Sequence[int] = ()) -> None:
        self._pieces = pieces
        self._open = b""  # the bytes of a character that is not complete
        self._begun = False
        for token in _tail(after, lambda token: bool(pieces[token])):
            self.push(token)

    def push(self, token: int) -> str:
        piece = self._pieces[token]
        if not self._begun and piece:
            self._begun = True
            piece = self._pieces.first(token)
        if not self._open and type(piece) is str:
            return piece
        given = self._open + (piece.encode() if isinstance(piece, str) else piece)
        text, used = utf_8_decode(given, "replace", False)
        self._open = given[used:]
        return text

    def flush(self) -> str:
        text, self._open = self._open.decode(errors="replace"), b""
        return text

    def copy(self) -> Self:
        return copy.copy(self)


class WindowDetokenizer:
    """For every other decoder: the last few tokens decoded with and without the new ones; the rest is new."""

    __slots__ = ("_hidden", "_old", "_tokenizer", "_window")

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, hidden: frozenset[int], after: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._window = tuple(_tail(after, self._shows))
        self._old = len(
            self._window
        )  # how many of them are out already; they give the new ones their context

    def push(self, token: int) -> str:
        if not self._shows(token):
            return ""
        self._window += (token,)
        text = self._fresh()
        return "" if text.endswith("\ufffd") else self._give(text)

    def flush(self) -> str:
        return self._give(self._fresh())

    def copy(self) -> Self:
        return copy.copy(self)

    def _shows(self, token: int) -> bool:
        return token not in self._hidden and token_name(self._tokenizer, token) is not None

    def _fresh(self) -> str:
        return self._decode(self._window)[len(self._decode(self._window[: self._old])) :]

    def _give(self, text: str) -> str:
        if text:
            self._window = self._window[self._old :]
            self._old = len(self._window)
        return text

    def _decode(self, tokens: tuple[int, ...]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text


def _tail(tokens: Sequence[int], shows: Callable[[int], bool]) -> Iterator[int]:
    """The last few tokens that show."""
    return reversed(list(islice(filter(shows, reversed(tokens)), TAIL)))
