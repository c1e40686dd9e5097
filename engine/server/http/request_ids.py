"""The x-request-id header of every response: the client's own id, or the server's."""

import re
import secrets
from typing import Any

ID = "minichat.id"  # the entry of an ASGI scope that holds the server's id of a request
_HEADER = b"x-request-id"
_SANE = re.compile(rb"[\w.:=+/-]{1,128}", re.ASCII)


def identified(scope: Any, send: Any) -> Any:
    """Number a request. Return a `send` that adds the header to the start of its response."""
    if scope["type"] != "http":
        return send
    scope[ID] = secrets.token_hex(12)
    given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
    header = (_HEADER, given if _SANE.fullmatch(given) else scope[ID].encode())

    async def send_with_id(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = message | {"headers": [*message.get("headers", ()), header]}
        await send(message)

    return send_with_id
