"""The server state and the client's key behind a connection."""

from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from engine.server.http.auth import KEY

if TYPE_CHECKING:
    from engine.server.state import ServerState


def state_of(connection: HTTPConnection) -> "ServerState":
    state: ServerState = connection.app.state.server
    return state


def key_of(connection: HTTPConnection) -> bytes:
    """The digest of the client's key; empty on a server without keys."""
    key: bytes = connection.scope[KEY]
    return key
