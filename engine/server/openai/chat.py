"""POST /v1/chat/completions."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fastapi import APIRouter, Request
from fastapi.responses import Response

from engine.api.events import Delta, TokenLogprob
from engine.host.prompts import ChatPrompt
from engine.server.http.bodies import beside
from engine.server.http.errors import ApiError
from engine.server.http.sse import encoded, quoted
from engine.server.openai.errors import OpenAIRoute
from engine.server.openai.logprobs import Pieces, chat_logprobs
from engine.server.openai.messages import shaped, template_options
from engine.server.openai.responses import answer, asked_of, finish_of
from engine.server.openai.schema import ChatRequest
from engine.server.openai.structured import RequestedGrammar
from engine.server.openai.tooling import calls_of, definitions
from engine.server.reply_grammar import ToolCallRules, reply_grammar
from engine.server.schema import STREAM, openapi_answers, openapi_body
from engine.server.state import ServerState, mode_of
from engine.server.tools import READERS, Call, CallReader
from engine.text.reasoning import Thoughts

router = APIRouter(route_class=OpenAIRoute)


@router.post(
    "/v1/chat/completions",
    openapi_extra=openapi_body(ChatRequest),
    response_class=Response,
    responses=openapi_answers("application/json", STREAM),
)
async def chat(request: Request) -> Response:
    """A reply to a conversation."""
    state, asked = await asked_of(request, ChatRequest)
    logprobs = _logprobs(asked)
    if asked.max_tokens is not None and asked.max_completion_tokens is not None:
        raise ApiError(400, "give max_completion_tokens or max_tokens, not both", param="max_tokens")
    conversation, mode = await beside(request, lambda: _conversation(state, asked))
    opened = await state.opens_thinking(mode, conversation.options)
    form, wanted = await beside(request, lambda: _form(state, asked, conversation, opened))
    return await answer(
        request,
        asked,
        [conversation],
        form,
        wanted,
        logprobs=logprobs,
        max_tokens=asked.max_completion_tokens or asked.max_tokens,
    )


def _conversation(state: ServerState, asked: ChatRequest) -> tuple[ChatPrompt, bytes]:
    """What the template is told, and the way in which it is called."""
    tools, options = definitions(asked, state.tool_style), template_options(asked.chat_template_kwargs)
    conversation = ChatPrompt(shaped(asked.messages, state.host.templates), tools, options)
    if not state.host.has_template:
        raise ApiError(400, "this model has no chat template; use /v1/completions", param="messages")
    return conversation, mode_of(options)


def _form(
    state: ServerState, asked: ChatRequest, conversation: ChatPrompt, opened: bool
) -> tuple["_ChatForm", RequestedGrammar | None]:
    """How the reply is told, and what it must keep to."""
    calls = calls_of(asked, conversation.tools, state.tool_style)
    prefix = b"".join(state.host.pieces(asked.said or ())).decode(errors="replace")

    def voice() -> _Voice:
        return _Voice(Thoughts(opened=opened), READERS[calls.style]() if calls else None, prefix)

    form = _ChatForm(voice, state.host.pieces if asked.logprobs else None)
    return form, _wanted(asked, calls, opened)


def _logprobs(asked: ChatRequest) -> int | None:
    if asked.top_logprobs is not None and not asked.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    return (asked.top_logprobs or 0) if asked.logprobs else None


def _wanted(asked: ChatRequest, calls: ToolCallRules | None, opened: bool) -> RequestedGrammar | None:
    """The form of the whole reply, with a thought that the template opens, and with calls in their place."""
    text = asked.grammar()
    place = text.place if text else "tool_choice" if calls and calls.must else "tools"
    return RequestedGrammar.of(place, lambda: reply_grammar(text and text.grammar, calls, thinking=opened))


@dataclass(slots=True)
class _Part:
    """What some deltas have added to a message."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str | None = None
    score: float | None = None


class _Voice:
    """One choice's message as it grows. `prefix`: how it begins, which is not told."""

    def __init__(self, thoughts: Thoughts, reader: CallReader | None, prefix: str) -> None:
        self._thoughts, self._reader = thoughts, reader
        self.begun = False
        self.calls = 0
        self.whole = _Part()
        _, content = thoughts.push(prefix)
        if reader:
            reader.push(content)

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
        part.reasoning, part.content, part.score = reasoning, content, last.score
        part.finish = "tool_calls" if finish == "stop" and self.calls else finish
        for delta in deltas:
            part.logprobs += delta.logprobs
        return part


class _ChatForm:
    """Chunks and whole answers of this route."""

    prefix: ClassVar[str] = "chatcmpl"
    whole: ClassVar[str] = "chat.completion"
    part: ClassVar[str] = "chat.completion.chunk"

    def __init__(self, voice: Callable[[], _Voice], pieces: Pieces | None) -> None:
        self._voices, self._pieces = defaultdict[int, _Voice](voice), pieces

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
                b'{"index":%d,"delta":{' % choice,
                b",".join(parts),
                b'},"logprobs":',
                encoded(self._logprobs(part)),
                b',"finish_reason":',
                quoted(part.finish) if part.finish else b"null",
                b"}" if part.score is None else b',"score":%r}' % part.score,
            ]
        )

    def take(self, choice: int, deltas: Sequence[Delta]) -> None:
        voice = self._voices[choice]
        part, whole = voice.hear(deltas), voice.whole
        whole.reasoning += part.reasoning
        whole.content += part.content
        whole.calls += part.calls
        whole.logprobs += part.logprobs
        whole.finish, whole.score = part.finish, part.score

    def choices(self) -> list[dict[str, Any]]:
        return [self._choice(n, voice.whole) for n, voice in sorted(self._voices.items())]

    def _choice(self, index: int, part: _Part) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": part.content, "refusal": None}
        if part.reasoning:
            message["reasoning_content"] = part.reasoning
        if part.calls:
            message["content"] = part.content or None
            message["tool_calls"] = [call.record() for call in part.calls]
        whole = {"index": index, "message": message, "logprobs": self._logprobs(part)}
        whole["finish_reason"] = part.finish
        return whole if part.score is None else whole | {"score": part.score}

    def _logprobs(self, part: _Part) -> dict[str, Any] | None:
        if not self._pieces:
            return None
        return {"content": chat_logprobs(part.logprobs, self._pieces), "refusal": None}
