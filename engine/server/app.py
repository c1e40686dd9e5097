"""The ASGI application: routes, error handlers and the authentication middleware."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, WebSocket
from fastapi.exceptions import RequestValidationError, ValidationException, WebSocketRequestValidationError
from fastapi.responses import Response
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from engine.api.errors import EngineError
from engine.host.client import EngineClient
from engine.server.anthropic import errors as anthropic_errors
from engine.server.anthropic import messages
from engine.server.anthropic.schema import CountRequest, MessagesRequest
from engine.server.config import ServerConfig
from engine.server.drain import Drain
from engine.server.http.auth import AuthMiddleware, refuse
from engine.server.http.errors import FORM, ApiError, forget_frames, from_engine
from engine.server.http.loading import LoadingMiddleware, Opening
from engine.server.http.request_ids import identified
from engine.server.http.sse import SEND
from engine.server.native import attach, commands, control, events, layout, ws
from engine.server.ollama import chat as ollama_chat
from engine.server.ollama import embeddings as ollama_embeddings
from engine.server.ollama import errors as ollama_errors
from engine.server.ollama import models as ollama_models
from engine.server.ollama.schema import OllamaChatRequest, OllamaGenerateRequest, OllamaShowRequest
from engine.server.openai import chat, completions, embeddings, models, tokens
from engine.server.openai.responses_api import route as responses_api
from engine.server.openai.responses_api.schema import ResponsesRequest
from engine.server.openai.schema import ChatRequest, CompletionRequest
from engine.server.schema import sentence
from engine.server.startup import Startup
from engine.server.state import ServerState

_BODIES = (
    *(ChatRequest, CompletionRequest, ResponsesRequest, embeddings.EmbeddingRequest),
    *(attach.ReplyRequest, attach.ForkRequest),
    *(MessagesRequest, CountRequest),
    *(tokens.TokenizeRequest, tokens.DetokenizeRequest),
    *(OllamaChatRequest, OllamaGenerateRequest, OllamaShowRequest),
    *(ollama_embeddings.OllamaEmbedRequest, ollama_embeddings.OllamaEmbeddingsRequest),
    *(control.Tokens, layout.LayoutRequest, layout.TextsRequest),
)
_ABORTED_WITHIN = 3.0  # seconds


class _Application(FastAPI):
    """Adds to the scope: the server's own `send`, which each layer of middleware wraps again, the form of
    errors, and the request's id.
    """

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope[SEND] = send
        path = scope.get("path", "")
        scope[FORM] = anthropic_errors.error_form(path) or ollama_errors.error_form(path)
        await super().__call__(scope, receive, identified(scope, send))


def application(startup: Startup, config: ServerConfig, drain: Drain) -> FastAPI:
    """Return the application for one engine, which may still start. It keeps running when this ends."""

    def open(host: EngineClient) -> None:
        app.state.server = ServerState(host, config, drain)

    opening = Opening(startup, drain, open)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await opening.begin()
        yield
        opening.end()
        if opening.is_open:
            await app.state.server.replies.ended(config.drain + _ABORTED_WITHIN)
            app.state.server.close()

    app = _Application(
        title="minichat",
        version=config.version or "0",
        lifespan=lifespan,
        docs_url=None,  # these pages load scripts from a CDN
        redoc_url=None,
        redirect_slashes=False,
    )
    # Routes are searched in this order, so the most frequent ones come first.
    openai = (completions, chat, responses_api, embeddings, models, tokens)
    ollama = (ollama_chat, ollama_embeddings, ollama_models)
    parts = (*openai, messages, *ollama, control, commands, attach, layout, events, ws)
    # Not by `include_router`, which searches twice.
    app.router.routes[:0] = [route for part in parts for route in part.router.routes]
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(EngineError, _engine_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(WebSocketRequestValidationError, _socket_validation_error)
    app.add_exception_handler(Exception, _unexpected_error)
    app.router.default = _no_route
    app.add_middleware(LoadingMiddleware, opening=opening)
    app.add_middleware(AuthMiddleware, config=config, closing=lambda: drain.begun)
    if config.origins:  # outside the authentication: browsers send a preflight request without the key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.origins,
            allow_methods=["GET", "HEAD", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["retry-after", "x-request-id"],
        )
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Return FastAPI's OpenAPI document, plus the schemas of the bodies that the routes parse themselves."""
    if not app.openapi_schema:
        document = FastAPI.openapi(app)
        _, schemas = models_json_schema(
            [(body, "validation") for body in _BODIES], ref_template="#/components/schemas/{model}"
        )
        document.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
        app.openapi_schema = document
    return app.openapi_schema


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _refusal(request, error)


async def _engine_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, EngineError)
    return _refusal(request, from_engine(error))


def _refusal(request: Request, error: ApiError) -> Response:
    request.app.state.server.metrics.rejected(error)
    response = error.response(request.scope)
    forget_frames(error)
    return response


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path[:200]
    problem = {404: f"no such route: {path!r}", 405: f"{path!r} does not accept {method}"}.get(
        error.status_code, HTTPStatus(error.status_code).phrase
    )
    refusal = ApiError(error.status_code, problem)
    refusal.headers |= dict(error.headers or {})
    return refusal.response(request.scope)


async def _no_route(scope: Any, receive: Any, send: Any) -> None:
    """Answer an unknown path with 404. Starlette would answer a WebSocket with 403, as for a wrong key."""
    if scope["type"] != "websocket":
        raise HTTPException(404)
    await refuse(ApiError(404, f"no such route: {scope['path'][:200]!r}"), scope, send)


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _refusal(request, _first_problem(error))


async def _socket_validation_error(socket: WebSocket, error: Exception) -> None:
    assert isinstance(error, WebSocketRequestValidationError)
    await socket.send_denial_response(_first_problem(error).response(socket.scope))


def _first_problem(error: ValidationException) -> ApiError:
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return ApiError(400, f"{name}: {sentence(first)}", param=name)


async def _unexpected_error(request: Request, error: Exception) -> Response:
    """Answer an unexpected exception, which is a bug. Starlette logs it; the client sees no internals."""
    return ApiError(500, "internal server error; see the server's log").response(request.scope)
