"""POST /api/embed, and its older form /api/embeddings."""

import time
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from engine.host.prompts import CutPrompt, Prompt
from engine.server.embedding import Embedded, embed
from engine.server.http.bodies import GONE, read_as
from engine.server.http.connection import key_of, state_of
from engine.server.http.errors import ApiError
from engine.server.http.leaving import unless_gone
from engine.server.http.sse import encoded
from engine.server.ollama.errors import EmbedRoute, OllamaRoute
from engine.server.ollama.models import adapter_named
from engine.server.ollama.replies import nanoseconds
from engine.server.ollama.schema import OllamaBody, OllamaOptions
from engine.server.schema import openapi_answers, openapi_body
from engine.server.state import ServerState
from engine.server.urgency import USUAL, Urgency
from engine.text.tokenizer import checked_text

_MAX_INPUTS = 2048  # as on OpenAI's route

router = APIRouter(route_class=OllamaRoute)


class _EmbeddingBody(OllamaBody):
    model: str
    options: OllamaOptions | None = None

    @property
    def urgency(self) -> Urgency:
        return self.options.urgency if self.options else USUAL


class OllamaEmbedRequest(_EmbeddingBody):
    input: str | Annotated[list[str], Field(max_length=_MAX_INPUTS)]
    truncate: bool | None = None  # true by default
    dimensions: int | None = Field(None, ge=1, lt=2**31)


class OllamaEmbeddingsRequest(_EmbeddingBody):
    prompt: str


async def embeddings(request: Request) -> Response:
    """Return a vector of length 1 for each input."""
    began = time.monotonic()
    state, body = state_of(request), await read_as(request, OllamaEmbedRequest, any_type=True)
    adapter = await adapter_named(state, body.model)
    texts = [body.input] if isinstance(body.input, str) else body.input

    def record(found: Embedded) -> bytes:
        head = {
            "model": body.model,
            "total_duration": nanoseconds(time.monotonic() - began),
            "load_duration": 0,  # the model was loaded before
            "prompt_eval_count": found.tokens,
        }
        vectors = b",".join(encoded(vector.tolist()) for vector in found.vectors)
        return encoded(head)[:-1] + b',"embeddings":[' + vectors + b"]}"

    async def work() -> Embedded:
        prompts: Sequence[Prompt] = _checked(texts, "input")
        if body.truncate is not False:
            prompts = await _truncated(state, texts)
        return await embed(
            state,
            key_of(request),
            prompts,
            pooling="last",
            dimensions=body.dimensions,
            urgency=body.urgency,
            adapter=adapter,
        )

    if (done := await unless_gone(request.scope, request.receive, work())) is None:
        return Response(status_code=GONE)
    # In a thread: a million numbers take a second.
    return Response(await state.engine.work(lambda: record(done)), media_type="application/json")


router.add_api_route(
    "/api/embed",
    embeddings,
    methods=["POST"],
    route_class_override=EmbedRoute,
    openapi_extra=openapi_body(OllamaEmbedRequest),
    response_class=Response,
    responses=openapi_answers("application/json"),
)


@router.post(
    "/api/embeddings",
    openapi_extra=openapi_body(OllamaEmbeddingsRequest),
    response_class=Response,
    responses=openapi_answers("application/json"),
)
async def embedding(request: Request) -> Response:
    """Return the vector of one text."""
    state, body = state_of(request), await read_as(request, OllamaEmbeddingsRequest, any_type=True)
    adapter = await adapter_named(state, body.model)

    async def work() -> Embedded:
        prompts = await _truncated(state, _checked([body.prompt], "prompt"))
        key = key_of(request)
        return await embed(state, key, prompts, pooling="last", urgency=body.urgency, adapter=adapter)

    if (done := await unless_gone(request.scope, request.receive, work())) is None:
        return Response(status_code=GONE)
    return Response(encoded({"embedding": done.vectors[0].tolist()}), media_type="application/json")


def _checked(texts: list[str], field: str) -> list[str]:
    if "" in texts:
        raise ApiError(400, f"{field} must not be an empty text", param=field)
    return [checked_text(text, field, field=field) for text in texts]


async def _truncated(state: ServerState, texts: list[str]) -> list[Prompt]:
    """The texts, cut to the longest prompt."""
    most = (await state.engine.snapshot()).max_context - 1
    return [CutPrompt(text, most, first=True) for text in texts]
