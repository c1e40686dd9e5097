"""A reply as a message: its reasoning, its content and its tool calls, as the text arrives."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.api.events import Delta, TokenLogprob
from engine.api.request import Finish
from engine.server.tools import Call, CallReader
from engine.text.reasoning import Thoughts


@dataclass(slots=True)
class MessagePart:
    """What some deltas add to a message."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None  # None also if the reply failed, which is reported as an error
    score: float | None = None


class MessageWriter:
    """One choice's message as it grows. `prefix`: text it starts with, which is not sent."""

    def __init__(self, thoughts: Thoughts, reader: CallReader | None, prefix: str = "") -> None:
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
        part.finish = None if last.finish is Finish.FAILED else last.finish
        reasoning, content = self._thoughts.push(text)
        if part.finish:
            more = self._thoughts.flush()
            reasoning, content = reasoning + more[0], content + more[1]
        if self._reader:
            content, part.calls = self._reader.push(content)
            if part.finish:
                rest, calls = self._reader.flush(cut=part.finish is not Finish.STOP)
                content, part.calls = content + rest, part.calls + calls
        self.calls += len(part.calls)
        part.reasoning, part.content, part.score = reasoning, content, last.score
        for delta in deltas:
            part.logprobs += delta.logprobs
            part.tokens += delta.tokens
        return part

    def take(self, deltas: Sequence[Delta]) -> None:
        """Add the deltas to `whole`."""
        part, whole = self.push(deltas), self.whole
        whole.reasoning += part.reasoning
        whole.content += part.content
        whole.calls += part.calls
        whole.logprobs += part.logprobs
        whole.tokens += part.tokens
        whole.finish, whole.score = part.finish, part.score
