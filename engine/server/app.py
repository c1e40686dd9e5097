"""The application: its routes, how errors look, and the door before it all."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, WebSocket
from fastapi.exceptions import RequestValidationError, ValidationException, WebSocketRequestValidationError
from fastapi.responses import Response
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from engine.api.errors import EngineError
from engine.host.protocol import EngineHost
from engine.server.config import ServerConfig
from engine.server.drain import Drain
from engine.server.http.auth import AuthMiddleware, refuse
from engine.server.http.errors import ApiError, from_engine
from engine.server.native import attach, commands, control, events, layout, ws
from engine.server.openai import chat, completions, models
from engine.server.openai.schema import ChatRequest, CompletionRequest
from engine.server.state import ServerState

_BODIES = (
    *(ChatRequest, CompletionRequest, attach.ReplyRequest, attach.ForkRequest),
    *(control.Tokens, layout.LayoutRequest, layout.TextsRequest),
)
_ABORTED_WITHIN = 3.0  # seconds


def application(host: EngineHost, config: ServerConfig, drain: Drain | None = None) -> FastAPI:
    """Everything that is served for one engine, which is left running when the application ends."""
    ending = drain or Drain()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.server = ServerState(host, config, ending)
        yield
        await app.state.server.replies.ended(config.drain + _ABORTED_WITHIN)
        app.state.server.close()

    app = FastAPI(
        title="minichat",
        version=config.version or "0",
        lifespan=lifespan,
        docs_url=None,  # its pages are fetched from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    for part in (models, chat, completions, control, commands, attach, layout, events, ws):
        app.include_router(part.router)
    app.add_exception_handler(ApiError, _refused)
    app.add_exception_handler(EngineError, _engine_refused)
    app.add_exception_handler(HTTPException, _not_found)
    app.add_exception_handler(RequestValidationError, _bad_parameter)
    app.add_exception_handler(WebSocketRequestValidationError, _bad_socket_parameter)
    app.add_exception_handler(Exception, _broke)
    app.router.default = _nothing_here
    app.add_middleware(AuthMiddleware, config=config, closing=lambda: ending.begun)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's own document, with the bodies that routes read by themselves."""
    if not app.openapi_schema:
        document = FastAPI.openapi(app)
        _, schemas = models_json_schema(
            [(body, "validation") for body in _BODIES], ref_template="#/components/schemas/{model}"
        )
        document.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
        app.openapi_schema = document
    return app.openapi_schema


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _engine_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, EngineError)
    return from_engine(error).response()


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path[:200]
    problem = {404: f"there is no {path!r} here", 405: f"{path!r} does not take {method}"}.get(
        error.status_code, HTTPStatus(error.status_code).phrase
    )
    refusal = ApiError(error.status_code, problem)
    refusal.headers |= dict(error.headers or {})
    return refusal.response()


async def _nothing_here(scope: Any, receive: Any, send: Any) -> None:
    """Starlette's own answer to a socket is a 403, as if its key were wrong."""
    if scope["type"] != "websocket":
        raise HTTPException(404)
    await refuse(ApiError(404, f"there is no {scope['path'][:200]!r} here"), scope, send)


async def _bad_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _named(error).response()


async def _bad_socket_parameter(socket: WebSocket, error: Exception) -> None:
    assert isinstance(error, WebSocketRequestValidationError)
    await socket.send_denial_response(_named(error).response())


def _named(error: ValidationException) -> ApiError:
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return ApiError(400, f"{name}: {first['msg']}", param=name)


async def _broke(request: Request, error: Exception) -> Response:
    """Only a defect comes here. It is raised on into the log; the client sees no insides."""
    return ApiError(500, "the server failed on this request; its log says more").response()
