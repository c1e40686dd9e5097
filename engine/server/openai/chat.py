"""POST /v1/chat/completions."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from fastapi import APIRouter, Request
from fastapi.responses import Response

from engine.api.errors import BadInput
from engine.api.events import Delta
from engine.api.request import Finish
from engine.host.prompts import ChatPrompt
from engine.server.http.bodies import off_loop
from engine.server.http.errors import ApiError, renamed
from engine.server.http.sse import encoded, quoted
from engine.server.message_writer import MessagePart, MessageWriter
from engine.server.messages import template_messages
from engine.server.openai.cutting import cut_prompts
from engine.server.openai.errors import ChatRoute
from engine.server.openai.messages import chat_options, continued_text
from engine.server.openai.prompt_logprobs import PromptReader
from engine.server.openai.responses import FINISH, answer, ended, read_request, shown_pieces, stop_reason
from engine.server.openai.schema import ChatRequest
from engine.server.openai.structured import RequestedGrammar
from engine.server.openai.tooling import calls_of, definitions
from engine.server.reply_grammar import ToolCallRules, reply_grammar
from engine.server.schema import STREAM, openapi_answers, openapi_body
from engine.server.state import ServerState, mode_of
from engine.server.token_logprobs import Pieces, token_records
from engine.server.tool_calls.events import CallArguments, CallBegin
from engine.server.tool_calls.formats import reply_reader
from engine.text.reasoning import Thoughts

router = APIRouter(route_class=ChatRoute)


@router.post(
    "/v1/chat/completions",
    openapi_extra=openapi_body(ChatRequest),
    response_class=Response,
    responses=openapi_answers("application/json", STREAM),
)
async def chat(request: Request) -> Response:
    """Create a reply to a conversation."""
    state, body = await read_request(request, ChatRequest)
    logprobs = _logprobs(body)
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise ApiError(400, "max_tokens and max_completion_tokens cannot both be set", param="max_tokens")
    try:
        return await _answered(request, state, body, logprobs)
    except BadInput as error:
        if body.max_completion_tokens is None:
            raise
        raise renamed(error, {**ChatRoute.names, "max_tokens": "max_completion_tokens"}) from None


async def _answered(
    request: Request, state: ServerState, body: ChatRequest, logprobs: int | None
) -> Response:
    ready = await prepared(request, state, body)
    most = body.max_completion_tokens or body.max_tokens
    return await answer(
        request,
        body,
        await cut_prompts(state, body, [ready.conversation], max(most or 0, len(body.said or ()) + 1)),
        _ChatForm(
            ready.writer,
            shown_pieces(body, state.host.pieces) if body.logprobs else None,
            frozenset(body.stop_token_ids or ()),
            PromptReader(state.host.pieces, body.prompt_logprobs),
            with_reasoning=body.include_reasoning is not False,
        ),
        ready.requested,
        logprobs=logprobs,
        max_tokens=most,
    )


@dataclass(frozen=True, slots=True)
class _Start:
    """Where a reply begins: inside the reasoning that the template opens, or after a message's text."""

    opened: bool
    continued: str

    def thinks(self) -> bool:
        """Whether the reply's first token is reasoning."""
        thoughts = Thoughts(opened=self.opened)
        thoughts.push(self.continued)
        return thoughts.thinking


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A conversation, the grammar that the reply must match, and what splits each reply into its parts."""

    conversation: ChatPrompt
    requested: RequestedGrammar | None
    writer: Callable[[], MessageWriter]


async def prepared(request: Request, state: ServerState, body: ChatRequest) -> PreparedChat:
    """Check a chat, and return what is needed to run it."""
    conversation, mode = await off_loop(request, lambda: _conversation(state, body))
    continued = continued_text(body, body.messages)
    opened = continued is None and await state.opens_thinking(mode, conversation.options)
    start = _Start(opened, continued or "")
    return await off_loop(request, lambda: _prepared(state, body, conversation, start))


def _conversation(state: ServerState, body: ChatRequest) -> tuple[ChatPrompt, bytes]:
    """Return the template's input, and the cache key of its options."""
    tools, options = definitions(body, state.tool_style), chat_options(body)
    conversation = ChatPrompt(template_messages(body.messages, state.host.templates), tools, options)
    if not state.host.has_template:
        raise ApiError(400, "this model has no chat template; use /v1/completions", param="messages")
    return conversation, mode_of(options)


def _prepared(state: ServerState, body: ChatRequest, conversation: ChatPrompt, start: _Start) -> PreparedChat:
    calls = calls_of(body, conversation.tools, state.tool_style)
    prefix = start.continued + b"".join(state.host.pieces(body.said or ())).decode(errors="replace")

    def writer() -> MessageWriter:
        reader = reply_reader(state.tool_style, calls.functions if calls else None)
        return MessageWriter(Thoughts(opened=start.opened), reader, prefix)

    return PreparedChat(conversation, _requested_grammar(body, calls, start.thinks()), writer)


def _logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs requires logprobs to be true", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _requested_grammar(
    body: ChatRequest, calls: ToolCallRules | None, thinking: bool
) -> RequestedGrammar | None:
    """Return the grammar of the whole reply, including open reasoning, and tool calls."""
    text = body.grammar()
    must = calls is not None and calls.must  # then the format has no effect
    place = "tool_choice" if must else text.place if text else "tools"
    make = partial(reply_grammar, text and text.grammar, calls, thinking=thinking)
    return RequestedGrammar.of(place, make, calls)


class _ChatForm:
    """Writes this route's chunks and whole responses."""

    prefix: ClassVar[str] = "chatcmpl"
    whole: ClassVar[str] = "chat.completion"
    part: ClassVar[str] = "chat.completion.chunk"

    def __init__(
        self,
        writer: Callable[[], MessageWriter],
        pieces: Pieces | None,
        stop_ids: frozenset[int],
        prompt: PromptReader,
        *,
        with_reasoning: bool,
    ) -> None:
        self._with_reasoning = with_reasoning
        self._writers, self._pieces = defaultdict[int, MessageWriter](writer), pieces
        self._stop_ids, self._with_ids = stop_ids, False
        self._reasons: dict[int, str | int | None] = {}  # what ended each whole choice
        self._prompt = prompt

    def begin(self, prompts: Sequence[Sequence[int]], *, with_ids: bool) -> dict[str, Any]:
        self._with_ids = with_ids
        return {"prompt_token_ids": prompts[0]} if with_ids else {}

    def prompt_fields(self) -> dict[str, Any]:
        return self._prompt.fields()

    def chunks(self, choice: int, deltas: Sequence[Delta]) -> Sequence[bytes]:
        writer = self._writers[choice]
        part = writer.push(deltas)
        extra = (part.logprobs and self._pieces) or (part.tokens and self._with_ids)
        members = [*self._members(part)]
        if not writer.begun:
            writer.begun = True
            first = b'"role":"assistant"'
            members[:1] = [first + b"," + (members[0] if members else b'"content":""')]
        if not members and not part.finish and not extra:
            return ()
        *before, last = members or [b""]
        return [*(self._early(choice, each) for each in before), self._last(choice, last, part, deltas)]

    def _members(self, part: MessagePart) -> Iterator[bytes]:
        """Yield the members of each chunk's delta: text in one, each piece of a call in one of its own."""
        texts = []
        if part.reasoning and self._with_reasoning:
            texts.append(b'"reasoning_content":' + quoted(part.reasoning))
        if part.content:
            texts.append(b'"content":' + quoted(part.content))
        if texts:
            yield b",".join(texts)
        for event in part.read:
            if isinstance(event, CallBegin | CallArguments):
                yield b'"tool_calls":' + encoded([event.record()])

    def _early(self, choice: int, members: bytes) -> bytes:
        """Return an entry of `choices` before the last one of some deltas, which has what they share."""
        ids = b',"token_ids":[]}' if self._with_ids else b"}"
        start = b'{"index":%d,"delta":{%b},"logprobs":null,"finish_reason":null'
        return start % (choice, members) + ids

    def _last(self, choice: int, members: bytes, part: MessagePart, deltas: Sequence[Delta]) -> bytes:
        finish = _finish(part.finish, self._writers[choice].calls)
        return b"".join(
            [
                b'{"index":%d,"delta":{' % choice,
                members,
                b'},"logprobs":',
                encoded(self._logprobs(part)),
                b',"finish_reason":',
                ended(finish, stop_reason(deltas[-1], self._stop_ids), part.score),
                b',"token_ids":%b}' % encoded(part.tokens) if self._with_ids else b"}",
            ]
        )

    def take(self, choice: int, deltas: Sequence[Delta]) -> None:
        self._prompt.take(choice, deltas)
        self._writers[choice].take(deltas)
        self._reasons[choice] = stop_reason(deltas[-1], self._stop_ids)

    def choices(self) -> list[dict[str, Any]]:
        return [self._choice(n, writer.whole) for n, writer in sorted(self._writers.items())]

    def _choice(self, index: int, part: MessagePart) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": part.content, "refusal": None}
        if part.reasoning and self._with_reasoning:
            message["reasoning_content"] = part.reasoning
        if part.calls:
            message["content"] = part.content or None
            message["tool_calls"] = [call.record() for call in part.calls]
        whole = {"index": index, "message": message, "logprobs": self._logprobs(part)}
        finish = _finish(part.finish, len(part.calls))
        whole |= {"finish_reason": finish, "stop_reason": self._reasons[index]}
        if self._with_ids:
            whole["token_ids"] = part.tokens
        return whole if part.score is None else whole | {"score": part.score}

    def _logprobs(self, part: MessagePart) -> dict[str, Any] | None:
        if not self._pieces:
            return None
        return {"content": token_records(part.logprobs, self._pieces), "refusal": None}


def _finish(finish: Finish | None, calls: int) -> str | None:
    if finish is None:
        return None
    return "tool_calls" if finish is Finish.STOP and calls else FINISH[finish]
