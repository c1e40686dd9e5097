"""Replies in Ollama's form: one JSON object, or a line of JSON for each part and one for the end."""

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from engine.api.errors import BadInput
from engine.api.events import Delta
from engine.server.answer import raise_failed
from engine.server.generation import Batch, Generation
from engine.server.http.errors import ApiError
from engine.server.http.sse import EventStream, encoded
from engine.server.message_writer import MessagePart, MessageWriter
from engine.server.ollama.errors import error_record, in_ollama_words
from engine.server.ollama.models import utc
from engine.server.token_logprobs import Pieces, token_records
from engine.server.tool_calls.events import Call

LINES = "application/x-ndjson"
Form = Callable[[MessagePart], dict[str, Any]]  # how a route writes a part


class LineStream(EventStream):
    media_type = LINES


def chat_form(part: MessagePart) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": part.content}
    if part.reasoning:
        message["thinking"] = part.reasoning
    if part.calls:
        message["tool_calls"] = list(map(_call, part.calls))
    return {"message": message}


def generate_form(part: MessagePart) -> dict[str, Any]:
    text = {"response": part.content}
    return text | {"thinking": part.reasoning} if part.reasoning else text


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "function": {"name": call.name, "arguments": call.given()}}


def loaded(name: str, form: Form) -> dict[str, Any]:
    """The answer to a request without a prompt, which clients send to load a model before they need it."""
    return _head(name) | form(MessagePart()) | {"done": True, "done_reason": "load"}


class OllamaReply:
    """One reply, and the times of its parts."""

    def __init__(self, name: str, form: Form, writer: MessageWriter, pieces: Pieces | None) -> None:
        """`pieces`: set if the reply has the log-probabilities of its tokens."""
        self._name, self._form, self._writer, self._pieces = name, form, writer, pieces
        self._arrived = time.monotonic()

    async def lines(self, run: Generation) -> AsyncIterator[bytes]:
        part = MessagePart()
        try:
            async for batch in run:
                part = self._writer.push(_deltas(batch))
                if part.content or part.reasoning or part.calls or (self._pieces and part.logprobs):
                    yield _line(_head(self._name) | self._parts(part) | {"done": False})
                raise_failed(batch)
            yield _line(self._end(run, MessagePart(finish=part.finish)))
        except BadInput as error:
            yield _line(error_record(in_ollama_words(error)))
        except ApiError as error:
            yield _line(error_record(error))

    async def whole(self, run: Generation) -> dict[str, Any]:
        async for batch in run:
            self._writer.take(_deltas(batch))
            raise_failed(batch)
        return self._end(run, self._writer.whole)

    def _parts(self, part: MessagePart) -> dict[str, Any]:
        if self._pieces is None or not part.logprobs:
            return self._form(part)
        return self._form(part) | {"logprobs": token_records(part.logprobs, self._pieces)}

    def _end(self, run: Generation, part: MessagePart) -> dict[str, Any]:
        """Return the final object. Clients divide by durations, so they are above 0."""
        now = time.monotonic()
        first = run.engine.first_token_at(run.requests[0]) or now  # a piece may hold many tokens
        return {
            **_head(self._name),
            **self._parts(part),
            "done": True,
            "done_reason": part.finish and part.finish.value,
            "total_duration": nanoseconds(now - self._arrived),
            "load_duration": 0,  # the model was loaded before
            "prompt_eval_count": run.usage.prompt,
            "prompt_eval_duration": nanoseconds(first - self._arrived),
            "eval_count": run.usage.completion,
            "eval_duration": nanoseconds(now - first),
        }


def _deltas(batch: Batch) -> list[Delta]:
    [(_, deltas)] = batch  # there is one prompt
    return deltas


def nanoseconds(seconds: float) -> int:
    return max(int(seconds * 1e9), 1)


def _head(name: str) -> dict[str, Any]:
    return {"model": name, "created_at": utc(time.time())}


def _line(record: dict[str, Any]) -> bytes:
    return encoded(record) + b"\n"
