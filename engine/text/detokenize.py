"""Incremental detokenization: tokens in one at a time, whole characters out."""

import copy
from codecs import utf_8_decode
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Protocol, Self

import tokenizers

from engine.text.pieces import PieceTable, token_name

TAIL = 4  # last tokens that can affect the next one: a character has at most four bytes


class Detokenizer(Protocol):
    """Takes a reply's tokens and returns its text as soon as it is final."""

    def push(self, token: int) -> str:
        """Return the text that this token completes; empty while a character is incomplete."""

    def flush(self) -> str:
        """Return the remaining text. An incomplete character becomes U+FFFD."""

    def copy(self) -> Self:
        """Return an independent copy at the same position."""


class ByteDetokenizer:
    """For byte-level tokenizers: a table lookup, and UTF-8 decoding only when a character is split."""

    __slots__ = ("_begun", "_open", "_pieces")

    def __init__(self, pieces: PieceTable, after: Sequence[int] = ()) -> None:
        self._pieces = pieces
        self._open = b""  # the bytes of an incomplete character
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
    """For all other tokenizers: decodes the last few tokens with and without the new ones."""

    __slots__ = ("_hidden", "_old", "_tokenizer", "_window")

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, hidden: frozenset[int], after: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._window = tuple(_tail(after, self._visible))
        self._old = len(self._window)  # tokens already emitted, kept as context for the new ones

    def push(self, token: int) -> str:
        if not self._visible(token):
            return ""
        self._window += (token,)
        text = self._fresh()
        return "" if text.endswith("\ufffd") else self._give(text)

    def flush(self) -> str:
        return self._give(self._fresh())

    def copy(self) -> Self:
        return copy.copy(self)

    def _visible(self, token: int) -> bool:
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


def _tail(tokens: Sequence[int], visible: Callable[[int], bool]) -> Iterator[int]:
    """Return the last few visible tokens."""
    return reversed(list(islice(filter(visible, reversed(tokens)), TAIL)))
