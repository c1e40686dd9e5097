"""POST /v1/messages and /v1/messages/count_tokens."""

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from engine.api.errors import BadInput
from engine.api.params import Grammar
from engine.server.answer import gathered, raise_failed, streamed
from engine.server.anthropic.content import (
    PING,
    EventWriter,
    ending,
    message_head,
    usage_record,
    whole_content,
)
from engine.server.anthropic.conversation import conversation, rules_of
from engine.server.anthropic.errors import PATH, AnthropicRoute, error_record
from engine.server.anthropic.schema import CountRequest, MessagesRequest
from engine.server.generation import Generation
from engine.server.http.bodies import off_loop, read_as
from engine.server.http.connection import key_of, state_of
from engine.server.http.errors import ApiError, renamed
from engine.server.http.request_ids import ID
from engine.server.http.sse import event
from engine.server.message_writer import MessageWriter
from engine.server.reply_grammar import ToolCallRules, reply_grammar
from engine.server.schema import STREAM, openapi_answers, openapi_body
from engine.server.state import ServerState, mode_of
from engine.server.tool_calls.formats import reply_reader
from engine.text.reasoning import Thoughts

router = APIRouter(route_class=AnthropicRoute)


@router.post(
    PATH,
    openapi_extra=openapi_body(MessagesRequest),
    response_class=Response,
    responses=openapi_answers("application/json", STREAM),
)
async def create(request: Request) -> Response:
    """Create a reply to a conversation, in the form of Anthropic's API."""
    state, body = state_of(request), await read_as(request, MessagesRequest)
    model = await state.served_name(body.model)
    try:
        return await _answer(request, body, state, model)
    except BadInput as error:
        raise renamed(error, body.names()) from None


@router.post(f"{PATH}/count_tokens", openapi_extra=openapi_body(CountRequest))
async def count_tokens(request: Request) -> dict[str, Any]:
    """Return the number of tokens in the prompt of such a request."""
    state, body = state_of(request), await read_as(request, CountRequest)
    await state.served_name(body.model)
    prompt = await off_loop(request, lambda: conversation(body, state))
    return {"input_tokens": await state.engine.work(lambda: state.host.count(prompt))}


async def _answer(request: Request, body: MessagesRequest, state: ServerState, model: str) -> Response:
    prompt = await off_loop(request, lambda: conversation(body, state))
    opened = await state.opens_thinking(mode_of(prompt.options), prompt.options)
    calls = rules_of(body, prompt, state)
    message, grammar = await off_loop(request, lambda: _reply(body, calls, state, opened))
    params, adapter = body.sampling(grammar=grammar), state.adapter_of(body.model)
    run = state.run(key_of(request), [prompt], params, urgency=body.urgency, adapter=adapter, calls=calls)
    begun, id = run.begin(), request.scope[ID]
    if body.stream:
        writer, pulse = EventWriter(model, id), state.config.pulse
        return await streamed(request, begun, lambda run: _events(run, message, writer, body, pulse))
    return await gathered(request, begun, lambda run: _whole(run, message, message_head(model, id)))


def _reply(
    body: MessagesRequest, calls: ToolCallRules | None, state: ServerState, opened: bool
) -> tuple[MessageWriter, Grammar | None]:
    """Return the writer of the reply's message, and the grammar that the reply must match."""
    message = MessageWriter(
        Thoughts(opened=opened), reply_reader(state.tool_style, calls.functions if calls else None)
    )
    return message, reply_grammar(body.text_grammar(), calls, thinking=opened)


async def _events(
    run: Generation, message: MessageWriter, writer: EventWriter, body: MessagesRequest, pulse: float
) -> AsyncIterator[bytes]:
    """Yield the events. The first waits for the first tokens, whose usage it has, or for the first ping."""
    try:
        async for batch in run.batches(pulse):
            chunk = b"" if writer.begun else writer.start(run.usage)
            if not batch:
                yield chunk + PING
                continue
            for _, deltas in batch:
                part = message.push(deltas)
                chunk += writer.push(part)
                if part.finish:
                    chunk += writer.end(part.finish, deltas[-1].stop, run.usage)
            if chunk:
                yield chunk
            raise_failed(batch)
    except BadInput as error:
        yield event(error_record(renamed(error, body.names())), "error")
    except ApiError as error:
        yield event(error_record(error), "error")


async def _whole(run: Generation, message: MessageWriter, head: dict[str, Any]) -> dict[str, Any]:
    stop = ""
    async for batch in run:
        for _, deltas in batch:
            message.take(deltas)
            stop = deltas[-1].stop
        raise_failed(batch)
    whole = message.whole
    end = ending(whole.finish, stop, bool(whole.calls))
    return {**head, "content": whole_content(whole), **end, "usage": usage_record(run.usage)}
