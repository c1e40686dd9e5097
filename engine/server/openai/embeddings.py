"""POST /v1/embeddings."""

import base64
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from engine.host.prompts import WholePrompt
from engine.server.embedding import Embedded, embed
from engine.server.http.bodies import GONE, read_as
from engine.server.http.connection import key_of, state_of
from engine.server.http.errors import ApiError
from engine.server.http.leaving import unless_gone
from engine.server.http.routes import RenamingRoute
from engine.server.http.sse import encoded
from engine.server.openai.cutting import cut_prompts
from engine.server.openai.schema import CutFields
from engine.server.schema import Ordered, Sparse, TokenIds, openapi_answers, openapi_body
from engine.text.tokenizer import checked_text

_MAX_INPUTS = 2048  # OpenAI's limit
_Ids = Annotated[TokenIds, Field(min_length=1)]


class EmbeddingRoute(RenamingRoute):
    names: ClassVar[Mapping[str, str]] = {"prompt": "input"}


router = APIRouter(route_class=EmbeddingRoute)


class EmbeddingRequest(Sparse, Ordered, CutFields):
    model: str | None = None
    input: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=_MAX_INPUTS)]
        | _Ids
        | Annotated[list[_Ids], Field(min_length=1, max_length=_MAX_INPUTS)]
    )
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, lt=2**31)
    pooling: Literal["last", "mean"] = "last"
    user: str | None = None  # accepted and ignored


@router.post(
    "/v1/embeddings",
    openapi_extra=openapi_body(EmbeddingRequest),
    response_class=Response,
    responses=openapi_answers("application/json"),
)
async def embeddings(request: Request) -> Response:
    """Return a vector of length 1 for each input."""
    state, body = state_of(request), await read_as(request, EmbeddingRequest)
    name = await state.served_name(body.model)
    prompts = await cut_prompts(state, body, _prompts(body.input), side="right")
    work = embed(
        state,
        key_of(request),
        prompts,
        pooling=body.pooling,
        dimensions=body.dimensions,
        urgency=body.urgency,
        adapter=state.adapter_of(body.model),
    )
    if (found := await unless_gone(request.scope, request.receive, work)) is None:
        return Response(status_code=GONE)
    # In a thread: a million numbers take a second.
    content = await state.engine.work(lambda: _record(found, body, name))
    return Response(content, media_type="application/json")


def _prompts(given: str | list[str] | list[int] | list[list[int]]) -> list[WholePrompt]:
    """Return the inputs as a list."""
    several = isinstance(given, list) and not isinstance(given[0], int)
    prompts: list[WholePrompt] = list(given) if several else [given]  # type: ignore[arg-type, list-item]
    if "" in prompts:
        raise ApiError(400, "input must not be an empty text", param="input")
    for number, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            place = f"input[{number}]" if several else "input"
            checked_text(prompt, place, field=place)
    return prompts


def _record(found: Embedded, body: EmbeddingRequest, model: str) -> bytes:
    """Return the response, whose vectors are encoded one by one, so that other threads can run."""
    write = _in_base64 if body.encoding_format == "base64" else _numbers
    usage = {
        "prompt_tokens": found.tokens,
        "total_tokens": found.tokens,
        "prompt_tokens_details": {"cached_tokens": found.cached},
    }
    tail = encoded({"model": model, "pooling": body.pooling, "usage": usage})
    entries = (
        encoded({"object": "embedding", "index": n, "embedding": write(vector)})
        for n, vector in enumerate(found.vectors)
    )
    return b'{"object":"list","data":[' + b",".join(entries) + b"]," + tail[1:]


def _numbers(vector: np.ndarray) -> list[float]:
    found: list[float] = vector.tolist()
    return found


def _in_base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.tobytes()).decode()
