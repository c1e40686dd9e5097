"""A reply's reasoning, told apart from its answer while both arrive in pieces."""

from dataclasses import dataclass

_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(slots=True)
class ReplyText:
    """Text that begins with <think> is reasoning up to </think>; everything else is the answer."""

    reasoning: str = ""
    text: str = ""
    thinking: bool = False
    begins: int = 0  # character of all that came where the answer begins
    _length: int = 0
    _raw: str = ""  # not decided yet
    _begun: bool = False

    def push(self, piece: str) -> str:
        """Takes what came; returns what it adds to the answer."""
        self._raw += piece
        self._length += len(piece)
        if not self._begun:
            start = self._raw.lstrip()
            if _OPEN.startswith(start[: len(_OPEN)]) and len(start) < len(_OPEN):
                return ""
            self._begun = True
            if start.startswith(_OPEN):
                self.thinking, self._raw = True, start[len(_OPEN) :].lstrip("\n")
        return self._think() if self.thinking else self._answer()

    def flush(self) -> str:
        """The end of the stream: what was held back is told. Returns what it adds to the answer."""
        if self.thinking:
            self.reasoning, self._raw = self.reasoning + self._raw, ""
            return ""
        return self._answer()

    def _think(self) -> str:
        thought, closed, rest = self._raw.partition(_CLOSE)
        if closed:
            self.reasoning = (self.reasoning + thought).rstrip("\n")
            self.thinking, self._raw = False, rest.lstrip("\n")
            return self._answer()
        sure = len(self._raw) - _held(self._raw)
        self.reasoning, self._raw = self.reasoning + self._raw[:sure], self._raw[sure:]
        return ""

    def _answer(self) -> str:
        piece, self._raw = self._raw, ""
        if not self.text and self.reasoning:
            piece = piece.lstrip("\n")  # the blank lines between the reasoning and the answer
        if not self.text:
            self.begins = self._length - len(piece)
        self.text += piece
        return piece


def _held(text: str) -> int:
    """How many of the last characters may be the beginning of </think>."""
    return next((n for n in range(min(len(text), len(_CLOSE) - 1), 0, -1) if text.endswith(_CLOSE[:n])), 0)
