"""A reply as output items, and the events that report each of them as it grows."""

import secrets
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from engine.api.events import Delta
from engine.api.request import Finish
from engine.server.message_writer import MessageWriter
from engine.server.tool_calls.events import (
    CallArguments,
    CallBegin,
    CallEnd,
    ContentPiece,
    ReasoningPiece,
)
from engine.server.tool_calls.events import Event as ReplyEvent

Event = tuple[str, dict[str, Any]]  # its type, and its fields


class _TextItem:
    """A message, or the reasoning before it: one part of text."""

    def __init__(self, kind: str, index: int) -> None:
        self._reasons = kind == "reasoning"
        self._texts: list[str] = []
        self._name = "reasoning_text" if self._reasons else "output_text"
        self._more: dict[str, Any] = {} if self._reasons else {"logprobs": []}
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

    def grown(self, text: str) -> Iterator[Event]:
        self._texts.append(text)
        yield f"{self._name}.delta", {**self._place, "delta": text, **self._more}

    def ended(self, status: str) -> Iterator[Event]:
        text = self.settle(status)
        yield f"{self._name}.done", {**self._place, "text": text, **self._more}
        yield "content_part.done", {**self._place, "part": self._part(text)}
        yield "output_item.done", {"output_index": self._place["output_index"], "item": self.record}

    def settle(self, status: str) -> str:
        """Put the text into the record, and return it."""
        text = "".join(self._texts)
        self.record |= {"status": status, "content": [self._part(text)]}
        return text

    def _part(self, text: str) -> dict[str, Any]:
        part = {"type": self._name, "text": text}
        return part if self._reasons else part | {"annotations": [], **self._more}


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

    def grown(self, text: str) -> Iterator[Event]:
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

    def __init__(self, writer: MessageWriter) -> None:
        self._writer = writer
        self._open: _TextItem | _CallItem | None = None
        self._open_kind = ""
        self.items: list[dict[str, Any]] = []
        self.finish: Finish | None = None
        self.reasoning_tokens = 0

    def push(self, deltas: Sequence[Delta]) -> Iterator[Event]:
        """Add deltas, and yield what changes."""
        events = self._events(deltas)
        for kind, same in groupby(events, key=type):
            if kind is ContentPiece or kind is ReasoningPiece:
                name = "message" if kind is ContentPiece else "reasoning"
                yield from self._text(name, "".join([event.text for event in same]))  # type: ignore[union-attr]
            else:
                for event in same:
                    yield from self._call(event)
        if self.finish:
            if not self.items:
                yield from self._text("message", "")
            yield from self._end("completed" if self.finish is Finish.STOP else "incomplete")

    def stop(self) -> None:
        """End a reply that failed, without events."""
        if self._open:
            self._open.settle("incomplete")

    def _events(self, deltas: Sequence[Delta]) -> Iterator[ReplyEvent]:
        """Yield the reply's parts in order. Deltas are read one by one to count the reasoning's tokens."""
        for delta in deltas:
            thought = self._writer.thinking
            part = self._writer.push([delta])
            if thought or self._writer.thinking:
                self.reasoning_tokens += len(delta.tokens)
            self.finish = part.finish
            yield from part.events

    def _text(self, kind: str, text: str) -> Iterator[Event]:
        if self._open is None or self._open_kind != kind:
            yield from self._begin(kind, _TextItem(kind, len(self.items)))
        if text and self._open:
            yield from self._open.grown(text)

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
