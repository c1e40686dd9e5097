"""Commands over HTTP: one route for all of them, and older routes for some."""

import re
from collections.abc import Awaitable, Callable, Mapping
from types import NoneType
from typing import Any, NamedTuple, get_origin, get_type_hints

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import TypeAdapter

from engine.api import commands
from engine.api.codec import field_types
from engine.api.commands import Command, Sender, command_of, encode_result, known_command, result_of
from engine.api.errors import BadInput
from engine.api.wire import VERSION
from engine.server.http.bodies import off_loop, read_json
from engine.server.http.connection import state_of

router = APIRouter()


class Route(NamedTuple):
    """An older route of a command. Fields that are not in the path come in the body."""

    path: str
    command: type[Command[Any]]
    status: int = 204
    method: str = "POST"

    @property
    def in_path(self) -> list[str]:
        return [name for name in field_types(self.command) if re.search(rf"{{{name}(:path)?}}", self.path)]


ROUTES = (
    Route("/engine/requests/{id}/update", commands.Update),
    Route("/engine/requests/{ids}/abort", commands.Abort),
    Route("/engine/requests/{id}/preempt", commands.Preempt),
    Route("/engine/switches/{name}", commands.SetSwitch),
    Route("/engine/quantization", commands.SetQuantization, 202),
    Route("/engine/quantization/cancel", commands.CancelQuantization),
    Route("/engine/kv", commands.SetKvScheme),
    Route("/engine/adapters", commands.LoadAdapter),
    Route("/engine/adapters/{name:path}", commands.DropAdapter, method="DELETE"),
    Route("/engine/speeds", commands.MeasureSpeeds, 200, "GET"),
)


@router.post("/engine/commands/{verb}")
async def command(request: Request, verb: str) -> JSONResponse:
    """Run any command open to API keys, by its name. The body has its fields (docs/wire.md)."""
    kind = known_command(verb, Sender.KEY)
    return JSONResponse({"v": VERSION, "result": await _send(request, kind, await read_json(request))})


async def _send(request: Request, kind: type[Command[Any]], fields: Any) -> Any:
    command = await off_loop(request, lambda: command_of(kind.verb, fields, Sender.KEY))
    state = state_of(request)
    if isinstance(command, commands.LoadAdapter) and command.name in state.config.names:
        # Requests with that name are for the model.
        raise BadInput(f"{command.name!r} is the model's name; choose another one", field="name")
    result = await state.engine.send(command)
    if isinstance(command, commands.Update):
        state.replies.updated(command.id, command.changes)
    return encode_result(kind, result)


def _endpoint(route: Route) -> Callable[[Request], Awaitable[Response]]:
    types = field_types(route.command)
    in_body = [name for name in types if name not in route.in_path]

    async def act(request: Request) -> Response:
        fields = await read_json(request) if in_body else {}
        if type(fields) is dict:
            path = request.path_params
            fields |= {name: _from_path(types[name], path[name]) for name in route.in_path}
        result = await _send(request, route.command, fields)
        if result_of(route.command) is NoneType:
            return Response(status_code=route.status)
        return JSONResponse({"v": VERSION, **result}, route.status)

    return act


def _from_path(kind: Any, text: str) -> Any:
    """Return a field's value from the path. Invalid text is passed on, and the command rejects it."""
    if kind is str:
        return text
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else text
    return [number] if get_origin(kind) is tuple else number


def _described(route: Route) -> dict[str, Any]:
    """Return the command's fields in OpenAPI's form."""
    types = get_type_hints(route.command)
    path = [{"name": n, "in": "path", "required": True, "schema": _schema(str)} for n in route.in_path]
    names = [name for name in field_types(route.command) if name not in route.in_path]
    if not names:
        return {"parameters": path}
    properties = {name: _schema(types[name]) for name in names}
    body = {"type": "object", "properties": properties, "required": names, "additionalProperties": False}
    content = {"application/json": {"schema": body}}
    return {"parameters": path, "requestBody": {"required": True, "content": content}}


def _schema(kind: Any) -> Mapping[str, Any]:
    return TypeAdapter(kind).json_schema()


for _route in ROUTES:
    router.add_api_route(
        _route.path,
        _endpoint(_route),
        methods=[_route.method],
        name=_route.command.verb,
        description=_route.command.__doc__,
        status_code=_route.status,
        response_class=Response if _route.status == 204 else JSONResponse,
        openapi_extra=_described(_route),
    )
