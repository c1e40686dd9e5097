"""Routes that are called with the request alone, and those whose errors have the field names of their API."""

import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ClassVar

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.routing import request_response

from engine.api.errors import BadInput
from engine.server.http.errors import renamed

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class DirectRoute(APIRoute):
    """Calls an endpoint that takes the request and returns a response. FastAPI would look for its parameters
    and dependencies in each request, which takes a tenth of a short request's time.
    """

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        if self._is_direct:  # Starlette's call, without FastAPI's stacks of what dependencies leave open
            self.app = request_response(self.get_route_handler())

    @property
    def _is_direct(self) -> bool:
        signature = inspect.signature(self.endpoint)
        return [*signature.parameters] == ["request"] and signature.return_annotation is Response

    def get_route_handler(self) -> Handler:
        return self.endpoint if self._is_direct else super().get_route_handler()


class RenamingRoute(DirectRoute):
    """`names`: the engine's names of fields, and the API's."""

    names: ClassVar[Mapping[str, str]]

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def renaming(request: Request) -> Response:
            try:
                return await handle(request)
            except BadInput as error:
                raise renamed(error, self.names) from None

        return renaming
