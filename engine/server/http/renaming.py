"""Routes whose engine errors have the field names of their API."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ClassVar

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from engine.api.errors import BadInput
from engine.server.http.errors import renamed


class RenamingRoute(APIRoute):
    """`names`: the engine's names of fields, and the API's."""

    names: ClassVar[Mapping[str, str]]

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def renaming(request: Request) -> Response:
            try:
                return await handle(request)
            except BadInput as error:
                raise renamed(error, self.names) from None

        return renaming
