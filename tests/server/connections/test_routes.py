"""How a request finds its route, and what a route calls."""

from typing import Any

import pytest
from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIWebSocketRoute
from starlette.routing import Route

from engine.server.http.routes import DirectRoute
from tests.server.conftest import Served


async def plain(request: Request) -> Response:
    return Response()


async def with_parameter(request: Request, id: str) -> Response:
    return Response(id)


async def with_record(request: Request) -> dict[str, Any]:
    return {}


async def without_request(id: str) -> Response:
    return Response(id)


def test_an_endpoint_of_the_request_alone_is_called_directly() -> None:
    assert DirectRoute("/plain", plain).get_route_handler() is plain


@pytest.mark.parametrize("endpoint", [with_parameter, with_record, without_request])
def test_fastapi_handles_other_endpoints(endpoint: Any) -> None:
    assert DirectRoute("/other/{id}", endpoint).get_route_handler() is not endpoint


def test_no_router_is_searched_inside_another_one(served: Served) -> None:
    routes = served.server.config.app.built.routes  # type: ignore[union-attr]
    assert all(isinstance(route, Route | APIWebSocketRoute) for route in routes)
    assert routes[0].path == "/v1/completions"
