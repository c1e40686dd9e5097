"""Splits a streaming reply into reasoning and answer."""

from dataclasses import dataclass, field

from engine.text.reasoning import Thoughts


@dataclass(slots=True)
class ReplyText:
    """The received text, split."""

    reasoning: str = ""
    text: str = ""
    begins: int = 0  # the index in the raw text at which the answer begins
    _length: int = 0
    _thoughts: Thoughts = field(default_factory=Thoughts)

    @property
    def thinking(self) -> bool:
        return self._thoughts.thinking

    def push(self, piece: str) -> str:
        """Add a piece; return what it adds to the answer."""
        self._length += len(piece)
        return self._add(*self._thoughts.push(piece))

    def flush(self) -> str:
        """End the stream and release held-back text. Return what it adds to the answer."""
        return self._add(*self._thoughts.flush())

    def _add(self, thought: str, piece: str) -> str:
        if not self.text:
            self.begins = self._length - len(piece)
        self.reasoning += thought
        self.text += piece
        return piece
