"""POST /v1/chat/completions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from engine.events import Delta, TokenLogprob
from engine.host.prompts import Conversation
from engine.server.connection import key_of, state_of
from engine.server.limits import read_json
from engine.server.openai.answer import (
    Head,
    answer,
    begun,
    check_choices,
    check_model,
    finish_of,
    usage_record,
)
from engine.server.openai.errors import ApiError
from engine.server.openai.logprobs import Pieces, chat_logprobs
from engine.server.openai.messages import check_tools, shaped, template_options
from engine.server.openai.schema import STREAM, ChatRequest, openapi_answers, openapi_body, parsed
from engine.server.reasoning import Thoughts
from engine.server.run import Usage
from engine.server.sse import encoded, quoted
from engine.server.state import State
from engine.server.tools import READERS, Call, CallReader

router = APIRouter()


@router.post(
    "/v1/chat/completions",
    openapi_extra=openapi_body(ChatRequest),
    response_class=Response,
    responses=openapi_answers("application/json", STREAM),
)
async def chat(request: Request) -> Response:
    """A reply to a conversation."""
    state = state_of(request)
    asked = parsed(ChatRequest, await read_json(request))
    check_model(asked, state)
    choices = check_choices(1, asked)
    logprobs = _logprobs(asked)
    if asked.max_tokens is not None and asked.max_completion_tokens is not None:
        raise ApiError(400, "give max_completion_tokens or max_tokens, not both", param="max_tokens")
    params = asked.sampling(logprobs=logprobs, max_tokens=asked.max_completion_tokens or asked.max_tokens)
    tools = _tools(asked, state)
    options = template_options(asked.chat_template_kwargs)
    conversation = Conversation(shaped(asked.messages, state.host.templates), tools, options)
    if not state.host.has_template:
        raise ApiError(400, "this model has no chat template; use /v1/completions", param="messages")
    opened = await state.opens_thinking(options)
    _check_grammar(asked, bool(tools), opened)
    run = await begun(state, key_of(request), [conversation], params, asked)
    voices = [
        _Voice(Thoughts(opened=opened), READERS[state.tool_style]() if tools and state.tool_style else None)
        for _ in range(choices)
    ]
    head = Head(state.config.name, "chatcmpl")
    usage = bool(asked.stream_options and asked.stream_options.include_usage)
    form = _ChatForm(head, voices, state.host.pieces if logprobs is not None else None, usage)
    return await answer(request, run, form, asked)


def _logprobs(asked: ChatRequest) -> int | None:
    if asked.top_logprobs is not None and not asked.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    return (asked.top_logprobs or 0) if asked.logprobs else None


def _check_grammar(asked: ChatRequest, tools: bool, opened: bool) -> None:
    """A reply that keeps to a grammar from its first token on neither thinks first nor calls anything."""
    if not (wanted := asked.grammar()):
        return
    if tools:
        why = "cannot be had together with tools; leave them out, or set tool_choice to none"
        raise ApiError(400, f"{wanted.place} {why}", param=wanted.place)
    if opened:
        why = "cannot be had while the template opens a thought; switch that off in chat_template_kwargs"
        raise ApiError(400, f"{wanted.place} {why}", param=wanted.place)


def _tools(asked: ChatRequest, state: State) -> Sequence[dict[str, Any]]:
    if not asked.tools:
        return ()
    if state.tool_style is None:
        raise ApiError(
            400,
            "tools: the chat template of this model takes none, or writes its calls in a form not known here",
            param="tools",
        )
    check_tools(asked.tools)
    return () if asked.tool_choice == "none" else asked.tools


@dataclass(slots=True)
class _Part:
    """What some deltas have added to a message."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str | None = None


class _Voice:
    """One choice's message as it grows."""

    def __init__(self, thoughts: Thoughts, reader: CallReader | None) -> None:
        self._thoughts, self._reader = thoughts, reader
        self.begun = False
        self.calls = 0
        self.whole = _Part()

    def hear(self, deltas: Sequence[Delta]) -> _Part:
        part = _Part()
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
        part.reasoning, part.content = reasoning, content
        part.finish = "tool_calls" if finish == "stop" and self.calls else finish
        for delta in deltas:
            part.logprobs += delta.logprobs
        return part


class _ChatForm:
    """Chunks and whole answers of this route."""

    def __init__(self, head: Head, voices: Sequence[_Voice], pieces: Pieces | None, usage: bool) -> None:
        self._head, self._voices, self._pieces = head, voices, pieces
        start = {
            "id": head.id,
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
        }
        self._start = b"data: " + encoded(start)[:-1] + b',"choices":['
        self._end = b'],"usage":null}\n\n' if usage else b"]}\n\n"

    def chunk(self, choice: int, deltas: Sequence[Delta]) -> bytes:
        voice = self._voices[choice]
        part = voice.hear(deltas)
        parts = []
        if not voice.begun:
            voice.begun = True
            parts.append(b'"role":"assistant"')
            if not part.reasoning and not part.content and not part.calls:
                parts.append(b'"content":""')
        if part.reasoning:
            parts.append(b'"reasoning_content":' + quoted(part.reasoning))
        if part.content:
            parts.append(b'"content":' + quoted(part.content))
        if part.calls:
            first = voice.calls - len(part.calls)
            calls = [{"index": n, **call.record()} for n, call in enumerate(part.calls, first)]
            parts.append(b'"tool_calls":' + encoded(calls))
        if not parts and not part.finish and not (part.logprobs and self._pieces):
            return b""
        return b"".join(
            [
                self._start,
                b'{"index":%d,"delta":{' % choice,
                b",".join(parts),
                b'},"logprobs":',
                self._logprobs(part),
                b',"finish_reason":',
                quoted(part.finish) if part.finish else b"null",
                b"}",
                self._end,
            ]
        )

    def usage_chunk(self, usage: Usage) -> bytes:
        return self._start + b'],"usage":' + encoded(usage_record(usage)) + b"}\n\n"

    def take(self, choice: int, deltas: Sequence[Delta]) -> None:
        voice = self._voices[choice]
        part, whole = voice.hear(deltas), voice.whole
        whole.reasoning += part.reasoning
        whole.content += part.content
        whole.calls += part.calls
        whole.logprobs += part.logprobs
        whole.finish = part.finish

    def whole(self, usage: Usage) -> dict[str, Any]:
        head = self._head
        return {
            "id": head.id,
            "object": "chat.completion",
            "created": head.created,
            "model": head.model,
            "choices": [self._choice(n, voice.whole) for n, voice in enumerate(self._voices)],
            "usage": usage_record(usage),
        }

    def _choice(self, index: int, part: _Part) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": part.content, "refusal": None}
        if part.reasoning:
            message["reasoning_content"] = part.reasoning
        if part.calls:
            message["content"] = part.content or None
            message["tool_calls"] = [call.record() for call in part.calls]
        logprobs = None
        if self._pieces:
            logprobs = {"content": chat_logprobs(part.logprobs, self._pieces), "refusal": None}
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": part.finish}

    def _logprobs(self, part: _Part) -> bytes:
        if not self._pieces:
            return b"null"
        return encoded({"content": chat_logprobs(part.logprobs, self._pieces), "refusal": None})
