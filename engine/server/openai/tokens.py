"""vLLM's routes for tools that need a prompt's tokens: /tokenize, /detokenize and /version."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from engine.host.prompts import ChatPrompt, CutPrompt
from engine.server.http.bodies import read_as, written
from engine.server.http.connection import state_of
from engine.server.http.errors import ApiError
from engine.server.http.sse import encoded
from engine.server.messages import template_messages
from engine.server.openai.cutting import cut_prompts
from engine.server.openai.errors import OpenAIRoute
from engine.server.openai.messages import continued_text, template_options
from engine.server.openai.schema import ConversationFields, CutFields
from engine.server.schema import Messages, Strict, TokenIds, openapi_answers, openapi_body
from engine.server.state import ServerState
from engine.server.tool_definitions import check_tools

router = APIRouter(route_class=OpenAIRoute)
_LONGEST = 1_000_000  # tokens
JSON = openapi_answers("application/json")


class TokenizeRequest(ConversationFields, CutFields):
    """A text, or messages for the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = Field(None, min_length=1)
    add_special_tokens: bool | None = None  # by default true for a text; a template writes its own
    return_token_strs: bool | None = None


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: TokenIds = Field(max_length=_LONGEST)


@router.post(
    "/tokenize", openapi_extra=openapi_body(TokenizeRequest), response_class=Response, responses=JSON
)
async def tokenize(request: Request) -> Response:
    """Return the tokens of a prompt as the engine reads it."""
    state, body = state_of(request), await read_as(request, TokenizeRequest)
    await state.served_name(body.model)
    longest = (await state.engine.snapshot()).max_context
    [cut] = await cut_prompts(state, body, [[]])

    def answer() -> bytes:
        ids = _ids(state, body)
        ids = cut.kept(ids) if isinstance(cut, CutPrompt) else ids
        names = [state.host.tokenizer.name(token) for token in ids] if body.return_token_strs else None
        return encoded({"tokens": ids, "count": len(ids), "max_model_len": longest, "token_strs": names})

    return await written(request, answer)


def _ids(state: ServerState, body: TokenizeRequest) -> list[int]:
    tokenizer = state.host.tokenizer
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give either prompt or messages", param="prompt")
    if body.messages is not None:
        start = tokenizer.start_ids if body.add_special_tokens else []
        return [*start, *state.host.tokens(_conversation(state, body, body.messages))]
    for name in ConversationFields.model_fields:
        if getattr(body, name) is not None:
            raise ApiError(400, f"{name} requires messages", param=name)
    text = body.prompt or ""
    return tokenizer.encode(text) if body.add_special_tokens is False else state.host.tokens(text)


def _conversation(state: ServerState, body: TokenizeRequest, messages: list[dict[str, Any]]) -> ChatPrompt:
    check_tools(body.tools or (), state.tool_style)
    continued_text(body, messages)  # refuses messages that cannot be continued
    turns = template_messages(messages, state.host.templates)
    return ChatPrompt(turns, body.tools or (), template_options(body))


@router.post("/detokenize", openapi_extra=openapi_body(DetokenizeRequest))
async def detokenize(request: Request) -> dict[str, Any]:
    """Return the text of tokens, with that of control tokens."""
    state, body = state_of(request), await read_as(request, DetokenizeRequest)
    await state.served_name(body.model)
    await state.check_tokens(tokens=body.tokens)
    decode = state.host.tokenizer.decode
    return {"prompt": await state.engine.work(lambda: decode(body.tokens, skip_special=False))}


@router.get("/version")
async def version(request: Request) -> dict[str, str]:
    """Return the version of this program."""
    return {"version": state_of(request).config.version or "0"}
