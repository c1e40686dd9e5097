"""A reply's reasoning and its answer, as both grow."""

from dataclasses import dataclass, field

from engine.text.reasoning import Thoughts


@dataclass(slots=True)
class ReplyText:
    """All that came, told apart."""

    reasoning: str = ""
    text: str = ""
    begins: int = 0  # character of all that came where the answer begins
    _length: int = 0
    _thoughts: Thoughts = field(default_factory=Thoughts)

    @property
    def thinking(self) -> bool:
        return self._thoughts.thinking

    def push(self, piece: str) -> str:
        """Takes what came; returns what it adds to the answer."""
        self._length += len(piece)
        return self._add(*self._thoughts.push(piece))

    def flush(self) -> str:
        """The end of the stream: what was held back is told. Returns what it adds to the answer."""
        return self._add(*self._thoughts.flush())

    def _add(self, thought: str, piece: str) -> str:
        if not self.text:
            self.begins = self._length - len(piece)
        self.reasoning += thought
        self.text += piece
        return piece
