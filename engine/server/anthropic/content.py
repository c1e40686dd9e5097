"""A reply as Anthropic's message: content blocks, whole or as events of a stream."""

from collections.abc import Iterator
from typing import Any

from engine.api.request import Finish
from engine.server.generation import Usage
from engine.server.http.sse import event, quoted
from engine.server.message_writer import MessagePart
from engine.server.tool_calls.events import (
    CallArguments,
    CallBegin,
    CallEnd,
    ContentPiece,
    Event,
    ReasoningPiece,
)

_REASONS = {Finish.STOP: "end_turn", Finish.LENGTH: "max_tokens", Finish.ABORTED: "abort"}
_DELTAS = {"thinking": ("thinking_delta", "thinking"), "text": ("text_delta", "text")}


def message_head(model: str, id: str) -> dict[str, Any]:
    """Return the fields of a message before its content."""
    return {"id": f"msg_{id}", "type": "message", "role": "assistant", "model": model}


def whole_content(part: MessagePart) -> list[dict[str, Any]]:
    """Return the blocks of a whole reply."""
    blocks = [_block(kind, text) for kind, text in _texts(part) if text]
    return blocks + [_tool_use(call.name, call.id, call.given()) for call in part.calls]


def ending(finish: Finish | None, stop: str, called: bool) -> dict[str, Any]:
    """Return why the reply ended. `stop`: the stop sequence that ended it, if one did."""
    reason = _REASONS[finish] if finish else None
    if finish is Finish.STOP:
        reason = "tool_use" if called else "stop_sequence" if stop else reason
    return {"stop_reason": reason, "stop_sequence": stop or None}


def usage_record(usage: Usage) -> dict[str, int]:
    """Return the usage in Anthropic's form, whose input tokens are those that were not cached."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }


class EventWriter:
    """Writes the events of a streamed reply. A block is open from its first text to the next block."""

    def __init__(self, model: str, id: str) -> None:
        self._model, self._id = model, id
        self._index = -1
        self._open = ""  # the kind of the open block
        self._called = False
        self.begun = False

    def start(self, usage: Usage) -> bytes:
        self.begun = True
        nothing = {"content": [], **ending(None, "", False), "usage": usage_record(usage)}
        return _event("message_start", message=message_head(self._model, self._id) | nothing)

    def push(self, part: MessagePart) -> bytes:
        """Return the events for what some deltas add."""
        return b"".join([each for event in part.events for each in self._change(event)])

    def end(self, finish: Finish, stop: str, usage: Usage) -> bytes:
        delta = ending(finish, stop, self._called)
        last = _event("message_delta", delta=delta, usage=usage_record(usage))
        return b"".join([*self._end(), last, _event("message_stop")])

    def _change(self, event: Event) -> Iterator[bytes]:
        match event:
            case ReasoningPiece(text):
                yield from self._begin("thinking")
                yield self._text("thinking", text)
            case ContentPiece(text):
                yield from self._begin("text")
                yield self._text("text", text)
            case CallBegin(_, name, id):
                self._called = True
                yield from self._begin("tool_use", _tool_use(name, id, {}))
            case CallArguments(_, text):
                yield self._delta(type="input_json_delta", partial_json=text)
            case CallEnd():
                yield from self._end()

    def _begin(self, kind: str, block: dict[str, Any] | None = None) -> Iterator[bytes]:
        """Open a block of this kind, unless one is already open."""
        if kind == self._open and block is None:
            return
        yield from self._end()
        self._index, self._open = self._index + 1, kind
        yield _event("content_block_start", index=self._index, content_block=block or _block(kind, ""))

    def _end(self) -> Iterator[bytes]:
        if self._open:
            self._open = ""
            yield _event("content_block_stop", index=self._index)

    def _text(self, kind: str, text: str) -> bytes:
        name, member = _DELTAS[kind]
        return self._delta(**{"type": name, member: text})

    def _delta(self, **delta: str) -> bytes:
        members = b",".join([b'"%s":%s' % (name.encode(), quoted(text)) for name, text in delta.items()])
        start = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{'
        return start % self._index + members + b"}}\n\n"


PING = event({"type": "ping"}, "ping")


def _event(name: str, **fields: Any) -> bytes:
    return event({"type": name, **fields}, name)


def _texts(part: MessagePart) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("thinking", part.reasoning), ("text", part.content)


def _block(kind: str, text: str) -> dict[str, Any]:
    return {"type": kind, kind: text} | ({"signature": ""} if kind == "thinking" else {})


def _tool_use(name: str, id: str, given: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{id.removeprefix('call_')}", "name": name, "input": given}
