"""A reply as it grows, split into reasoning, content and tool calls."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.api.events import Delta, TokenLogprob
from engine.server.openai.responses import finish_of
from engine.server.tools import Call, CallReader
from engine.text.reasoning import Thoughts


@dataclass(slots=True)
class MessagePart:
    """What some deltas add to a message."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str | None = None
    score: float | None = None


class MessageWriter:
    """One choice's message as it grows. `prefix`: text it starts with, which is not sent."""

    def __init__(self, thoughts: Thoughts, reader: CallReader | None, prefix: str) -> None:
        self._thoughts, self._reader = thoughts, reader
        self.begun = False
        self.calls = 0
        self.whole = MessagePart()
        _, content = thoughts.push(prefix)
        if reader:
            reader.push(content)

    @property
    def thinking(self) -> bool:
        """Whether the current text is reasoning."""
        return self._thoughts.thinking

    def push(self, deltas: Sequence[Delta]) -> MessagePart:
        part = MessagePart()
        last = deltas[-1]
        text = last.text if len(deltas) == 1 else "".join([delta.text for delta in deltas])
        reasoning, content = self._thoughts.push(text)
        finish = finish_of(last)
        if finish:
            more = self._thoughts.flush()
            reasoning, content = reasoning + more[0], content + more[1]
        if self._reader:
            content, part.calls = self._reader.push(content)
            if finish:
                rest, calls = self._reader.flush()
                content, part.calls = content + rest, part.calls + calls
        self.calls += len(part.calls)
        part.reasoning, part.content, part.score = reasoning, content, last.score
        part.finish = "tool_calls" if finish == "stop" and self.calls else finish
        for delta in deltas:
            part.logprobs += delta.logprobs
        return part
