"""POST /api/chat and /api/generate."""

from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response

from engine.host.prompts import ChatPrompt, Prompt
from engine.server.answer import gathered, streamed
from engine.server.http.bodies import off_loop, read_as
from engine.server.http.connection import key_of, state_of
from engine.server.http.errors import ApiError
from engine.server.http.sse import encoded
from engine.server.message_writer import MessageWriter
from engine.server.messages import template_messages
from engine.server.ollama.errors import OllamaRoute
from engine.server.ollama.models import adapter_named
from engine.server.ollama.replies import (
    LINES,
    Form,
    LineStream,
    OllamaReply,
    chat_form,
    generate_form,
    loaded,
)
from engine.server.ollama.schema import OllamaChatRequest, OllamaGenerateRequest, OllamaRequest
from engine.server.reply_grammar import ToolCallRules, reply_grammar
from engine.server.schema import openapi_answers, openapi_body
from engine.server.state import ServerState, mode_of
from engine.server.tool_calls.formats import reply_reader
from engine.server.tool_definitions import check_tools, functions_of
from engine.text.reasoning import Thoughts
from engine.text.tokenizer import checked_text

router = APIRouter(route_class=OllamaRoute)
R = TypeVar("R", bound=OllamaRequest)


@router.post(
    "/api/chat",
    openapi_extra=openapi_body(OllamaChatRequest),
    response_class=Response,
    responses=openapi_answers("application/json", LINES),
)
async def chat(request: Request) -> Response:
    """Create a reply to a conversation."""
    state, body = await _read(request, OllamaChatRequest)
    if not body.messages:
        return _loaded(body, chat_form)
    prompt = await off_loop(request, lambda: _conversation(state, body))
    return await _answer(request, body, prompt, chat_form)


@router.post(
    "/api/generate",
    openapi_extra=openapi_body(OllamaGenerateRequest),
    response_class=Response,
    responses=openapi_answers("application/json", LINES),
)
async def generate(request: Request) -> Response:
    """Create a reply to one message, or with `raw` continue a text."""
    state, body = await _read(request, OllamaGenerateRequest)
    if not body.prompt:
        return _loaded(body, generate_form)
    return await _answer(request, body, _prompt(state, body, body.prompt), generate_form)


async def _read(request: Request, kind: type[R]) -> tuple[ServerState, R]:
    state, body = state_of(request), await read_as(request, kind, any_type=True)
    await adapter_named(state, body.model)
    body.check()
    return state, body


def _loaded(body: OllamaRequest, form: Form) -> Response:
    return Response(encoded(loaded(body.model, form)), media_type="application/json")


def _conversation(state: ServerState, body: OllamaChatRequest) -> ChatPrompt:
    if not state.host.has_template:
        raise ApiError(400, "this model has no chat template; use /api/generate", param="messages")
    tools = body.tools or []
    check_tools(tools, state.tool_style)
    given = [_message(message, f"messages[{n}]") for n, message in enumerate(body.messages or ())]
    return ChatPrompt(template_messages(given, state.host.templates), tools, body.template_options())


def _message(message: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return a message with OpenAI's names, which templates expect."""
    if message.get("images"):
        raise ApiError(400, f"{place}.images is not supported: this engine reads only text", param=place)
    for name in ("thinking", "tool_name"):
        if message.get(name) is not None:
            checked_text(message[name], f"{place}.{name}", field=f"{place}.{name}")
    ours = {"content": "", "reasoning_content": message.get("thinking"), "name": message.get("tool_name")}
    return ours | {name: value for name, value in message.items() if value is not None}


def _prompt(state: ServerState, body: OllamaGenerateRequest, text: str) -> Prompt:
    if body.raw:
        if body.system:
            raise ApiError(400, "system: raw continues the prompt alone, without a template", param="system")
        return text
    if not state.host.has_template:
        if body.system:
            raise ApiError(400, "system: this model has no chat template", param="system")
        return text
    system = checked_text(body.system or "", "system", field="system")
    messages = [{"role": "system", "content": system}] if system else []
    text = checked_text(text, "prompt", field="prompt")
    return ChatPrompt([*messages, {"role": "user", "content": text}], (), body.template_options())


async def _answer(request: Request, body: OllamaRequest, prompt: Prompt, form: Form) -> Response:
    state = state_of(request)
    calls, opened, reader = None, False, None
    if isinstance(prompt, ChatPrompt):
        opened = await state.opens_thinking(mode_of(prompt.options), prompt.options)
        if prompt.tools and state.tool_style:
            calls = ToolCallRules(state.tool_style, functions_of(prompt.tools), must=False, many=True)
        reader = reply_reader(state.tool_style, calls.functions if calls else None)
    writer = MessageWriter(Thoughts(opened=opened), reader)
    reply = OllamaReply(body.model, form, writer, state.host.pieces if body.logprobs else None)
    params = await off_loop(
        request, lambda: body.sampling(reply_grammar(body.grammar(), calls, thinking=opened))
    )
    adapter = await adapter_named(state, body.model)
    run = state.run(
        key_of(request), [prompt], params, urgency=body.urgency, adapter=adapter, calls=calls
    ).begin()
    if body.stream is False:
        return await gathered(request, run, reply.whole)
    return await streamed(request, run, reply.lines, LineStream)
