"""A reply as output items, and the events that report each of them as it grows."""

import secrets
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from engine.api.events import Delta
from engine.api.request import Finish
from engine.server.message_writer import MessageWriter
from engine.server.openai.responses_api.logprobs import MessageLogprobs
from engine.server.tool_calls.events import (
    CallArguments,
    CallBegin,
    CallEnd,
    ContentPiece,
    ReasoningPiece,
)
from engine.server.tool_calls.events import Event as ReplyEvent

Event = tuple[str, dict[str, Any]]  # its type, and its fields
Records = list[dict[str, Any]]  # of tokens, with their log-probabilities


class _TextItem:
    """A message, or the reasoning before it: one part of text."""

    def __init__(self, kind: str, index: int) -> None:
        self._reasons = kind == "reasoning"
        self._texts: list[str] = []
        self._logprobs: Records = []
        self._name = "reasoning_text" if self._reasons else "output_text"
        id = f"{'rs' if self._reasons else 'msg'}_{secrets.token_hex(12)}"
        self._place = {"item_id": id, "output_index": index, "content_index": 0}
        self.record: dict[str, Any] = {"id": id, "type": kind, "status": "in_progress", "content": []}
        if self._reasons:
            self.record["summary"] = []  # the content has the full text
        else:
            self.record["role"] = "assistant"

    def begun(self) -> Iterator[Event]:
        yield "output_item.added", {"output_index": self._place["output_index"], "item": self.record}
        yield "content_part.added", {**self._place, "part": self._part("")}

    def grown(self, text: str, logprobs: Records | None = None) -> Iterator[Event]:
        logprobs = logprobs or []
        self._texts.append(text)
        self._logprobs += logprobs
        yield f"{self._name}.delta", {**self._place, "delta": text, **self._more(logprobs)}

    def ended(self, status: str) -> Iterator[Event]:
        text = self.settle(status)
        yield f"{self._name}.done", {**self._place, "text": text, **self._more(self._logprobs)}
        yield "content_part.done", {**self._place, "part": self._part(text)}
        yield "output_item.done", {"output_index": self._place["output_index"], "item": self.record}

    def settle(self, status: str) -> str:
        """Put the text into the record, and return it."""
        text = "".join(self._texts)
        self.record |= {"status": status, "content": [self._part(text)]}
        return text

    def _part(self, text: str) -> dict[str, Any]:
        part = {"type": self._name, "text": text}
        return part if self._reasons else part | {"annotations": [], **self._more([*self._logprobs])}

    def _more(self, logprobs: Records) -> dict[str, Any]:
        return {} if self._reasons else {"logprobs": logprobs}


class _CallItem:
    """A call of a function, whose arguments come piece by piece."""

    def __init__(self, call: CallBegin, index: int) -> None:
        id = f"fc_{secrets.token_hex(12)}"
        self._place = {"item_id": id, "output_index": index}
        self._pieces: list[str] = []
        self.record: dict[str, Any] = {
            "id": id,
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": "",
            "status": "in_progress",
        }

    def begun(self) -> Iterator[Event]:
        yield "output_item.added", {"output_index": self._place["output_index"], "item": self.record}

    def grown(self, text: str, logprobs: Records | None = None) -> Iterator[Event]:
        self._pieces.append(text)
        yield "function_call_arguments.delta", {**self._place, "delta": text}

    def ended(self, status: str) -> Iterator[Event]:
        arguments = self.settle(status)
        done = {**self._place, "name": self.record["name"], "arguments": arguments}
        yield "function_call_arguments.done", done
        yield "output_item.done", {"output_index": self._place["output_index"], "item": self.record}

    def settle(self, status: str) -> str:
        """Put the arguments into the record, and return them."""
        arguments = "".join(self._pieces)
        self.record |= {"status": status, "arguments": arguments}
        return arguments


class ResponseOutput:
    """The output items of one response. An item ends where one of another kind begins."""

    def __init__(self, writer: MessageWriter, logprobs: MessageLogprobs | None = None) -> None:
        """`logprobs`: if those of the messages' tokens are returned."""
        self._writer, self._logprobs = writer, logprobs
        self._open: _TextItem | _CallItem | None = None
        self._open_kind = ""
        self.items: list[dict[str, Any]] = []
        self.finish: Finish | None = None
        self.reasoning_tokens = 0

    def push(self, deltas: Sequence[Delta]) -> Iterator[Event]:
        """Add deltas, and yield what changes."""
        events = self._events(deltas)
        for kind, same in groupby(events, key=lambda each: type(each[0])):
            if kind is ContentPiece or kind is ReasoningPiece:
                name, texts, logprobs = "message" if kind is ContentPiece else "reasoning", [], Records()
                for event, records in same:
                    texts.append(event.text)  # type: ignore[union-attr]
                    logprobs += records
                yield from self._text(name, "".join(texts), logprobs)
            else:
                for event, _ in same:
                    yield from self._call(event)
        if self.finish:
            rest = self._logprobs.rest() if self._logprobs else []
            if not self.items or (rest and self._open_kind == "message"):
                yield from self._text("message", "", rest)
            yield from self._end("completed" if self.finish is Finish.STOP else "incomplete")

    def stop(self) -> None:
        """End a reply that failed, without events."""
        if self._open:
            self._open.settle("incomplete")

    def _events(self, deltas: Sequence[Delta]) -> Iterator[tuple[ReplyEvent, Records]]:
        """Yield the reply's parts in order, content with the log-probabilities of its tokens.

        Deltas are read one by one to count the reasoning's tokens.
        """
        for delta in deltas:
            thought = self._writer.thinking
            part = self._writer.push([delta])
            if thought := thought or self._writer.thinking:
                self.reasoning_tokens += len(delta.tokens)
            self.finish = part.finish
            events = part.events
            records = self._logprobs.of(delta, events, thought=thought) if self._logprobs else []
            for event in events:
                if isinstance(event, ContentPiece):
                    yield event, records
                    records = []
                else:
                    yield event, []

    def _text(self, kind: str, text: str, logprobs: Records) -> Iterator[Event]:
        if self._open is None or self._open_kind != kind:
            yield from self._begin(kind, _TextItem(kind, len(self.items)))
        if (text or logprobs) and self._open:
            yield from self._open.grown(text, logprobs)

    def _call(self, event: ReplyEvent) -> Iterator[Event]:
        match event:
            case CallBegin():
                yield from self._begin("function_call", _CallItem(event, len(self.items)))
            case CallArguments(_, text) if self._open:
                yield from self._open.grown(text)
            case CallEnd():
                yield from self._end("completed")

    def _begin(self, kind: str, item: _TextItem | _CallItem) -> Iterator[Event]:
        yield from self._end("completed")
        self._open, self._open_kind = item, kind
        self.items.append(item.record)
        yield from item.begun()

    def _end(self, status: str) -> Iterator[Event]:
        if self._open:
            yield from self._open.ended(status)
            self._open = None
