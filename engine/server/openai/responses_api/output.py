"""A reply as output items, and the events that report each of them as it grows."""

import secrets
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from engine.api.events import Delta
from engine.api.request import Finish
from engine.server.message_writer import MessageWriter
from engine.server.tools import Call

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
            self.record["summary"] = []  # the text is there in full
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


class ResponseOutput:
    """The output items of one response. An item ends where one of another kind begins."""

    def __init__(self, writer: MessageWriter) -> None:
        self._writer = writer
        self._open: _TextItem | None = None
        self._open_kind = ""
        self.items: list[dict[str, Any]] = []
        self.finish: Finish | None = None
        self.reasoning_tokens = 0

    def push(self, deltas: Sequence[Delta]) -> Iterator[Event]:
        """Add deltas, and yield what changes."""
        for kind, pieces in groupby(self._pieces(deltas), key=itemgetter(0)):
            if kind == "function_call":
                for _, call in pieces:
                    yield from self._end("completed")
                    yield from self._call(call)
            else:
                yield from self._text(kind, "".join([text for _, text in pieces]))
        if self.finish:
            if not self.items:
                yield from self._text("message", "")
            yield from self._end("completed" if self.finish is Finish.STOP else "incomplete")

    def stop(self) -> None:
        """End a reply that failed, without events."""
        if self._open:
            self._open.settle("incomplete")

    def _pieces(self, deltas: Sequence[Delta]) -> Iterator[tuple[str, Any]]:
        """Yield the reply's parts in order. Deltas are read one by one to count the reasoning's tokens."""
        for delta in deltas:
            thought = self._writer.thinking
            part = self._writer.push([delta])
            if thought or self._writer.thinking:
                self.reasoning_tokens += len(delta.tokens)
            if part.reasoning:
                yield "reasoning", part.reasoning
            if part.content:
                yield "message", part.content
            for call in part.calls:
                yield "function_call", call
            self.finish = part.finish

    def _text(self, kind: str, text: str) -> Iterator[Event]:
        if self._open is None or self._open_kind != kind:
            yield from self._end("completed")
            self._open, self._open_kind = _TextItem(kind, len(self.items)), kind
            self.items.append(self._open.record)
            yield from self._open.begun()
        if text:
            yield from self._open.grown(text)

    def _end(self, status: str) -> Iterator[Event]:
        if self._open:
            yield from self._open.ended(status)
            self._open = None

    def _call(self, call: Call) -> Iterator[Event]:
        index, id = len(self.items), f"fc_{secrets.token_hex(12)}"
        item = {"id": id, "type": "function_call", "call_id": call.id, "name": call.name}
        place = {"item_id": id, "output_index": index}
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield "output_item.added", {"output_index": index, "item": begun}
        yield "function_call_arguments.delta", {**place, "delta": call.arguments}
        yield (
            "function_call_arguments.done",
            {**place, "name": call.name, "arguments": call.arguments},
        )
        self.items.append({**item, "arguments": call.arguments, "status": "completed"})
        yield "output_item.done", {"output_index": index, "item": self.items[-1]}
