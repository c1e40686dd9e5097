"""Splits a streaming reply into reasoning and answer."""

from dataclasses import dataclass

from engine.text.channels import CHANNEL, Channels
from engine.text.reasoning import Thoughts


@dataclass(slots=True)
class ReplyText:
    """The received text, split."""

    opened: bool = False  # the prompt ends in <think>
    reasoning: str = ""
    text: str = ""
    begins: int = 0  # the index in the raw text at which the answer begins
    _length: int = 0
    _start: str = ""  # of the reply, while it may still be a channel's header
    _splitter: Thoughts | Channels | None = None

    @property
    def thinking(self) -> bool:
        return self._splitter is not None and self._splitter.thinking

    def push(self, piece: str) -> str:
        """Add a piece; return what it adds to the answer."""
        self._length += len(piece)
        if self._splitter is None:
            self._start += piece
            if not self.opened and len(self._start) < len(CHANNEL) and CHANNEL.startswith(self._start):
                return ""
            channels = not self.opened and self._start.startswith(CHANNEL)
            self._splitter = Channels() if channels else Thoughts(opened=self.opened)
            piece = self._start
        return self._add(*self._splitter.push(piece))

    def flush(self) -> str:
        """End the stream and release held-back text. Return what it adds to the answer."""
        if self._splitter is not None:
            return self._add(*self._splitter.flush())
        return self._add("", self._start)

    def _add(self, thought: str, piece: str) -> str:
        if not self.text:
            self.begins = self._length - len(piece)
        self.reasoning += thought
        self.text += piece
        return piece
