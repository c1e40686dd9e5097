"""Authentication: the API key, or without keys the Host and Origin headers."""

import hmac
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from engine.api.errors import Ending
from engine.server.config import HEALTH, ServerConfig
from engine.server.http.errors import ApiError, from_engine

App = Callable[[Any, Any, Any], Any]
KEY = "minichat.key"  # the entry of an ASGI scope that holds the digest of the client's key
NO_KEY = b""
_OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")


class AuthMiddleware:
    """The outermost middleware: a request that fails authentication never reaches a route."""

    def __init__(self, app: App, config: ServerConfig, closing: Callable[[], bool]) -> None:
        self._app, self._closing = app, closing
        self._digests = [sha256(key.encode()).digest() for key in config.keys]
        self._any_host, self._origins = config.any_host, config.origins

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            self._admit(scope)
        except ApiError as error:
            await refuse(error, scope, send)
            return
        await self._app(scope, receive, send)

    def _admit(self, scope: Any) -> None:
        headers = {name: value for name, value in scope["headers"] if name in _READ}
        scope[KEY] = NO_KEY
        if scope["type"] == "http" and scope["path"] == HEALTH:
            return
        if self._digests:
            scope[KEY] = self._key(headers)
        else:
            self._check_origin(headers)
        if self._closing():
            raise from_engine(Ending("the server is shutting down"))

    def _key(self, headers: Mapping[bytes, bytes]) -> bytes:
        """Return the digest of a valid key. All keys are compared, each in constant time."""
        kind, _, key = headers.get(b"authorization", b"").partition(b" ")
        given = [key] if kind.lower() == b"bearer" else []
        given += [headers[_API_KEY]] if _API_KEY in headers else []
        digests = [sha256(key.strip()).digest() for key in given]
        if found := [own for own in self._digests for each in digests if hmac.compare_digest(own, each)]:
            return found[0]
        problem = "invalid API key" if kind or given else "missing API key"
        forms = "'Authorization: Bearer KEY' or 'x-api-key: KEY'"
        where = "the server prints at startup where the key is stored"
        raise ApiError(401, f"{problem}; send it as {forms} ({where})", code="invalid_api_key")

    def _check_origin(self, headers: Mapping[bytes, bytes]) -> None:
        """Without keys, refuse web pages open in a browser on this machine, DNS rebinding included."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host if host.endswith("]") else host.rsplit(":", 1)[0] if ":" in host else host
        if host and name not in _OWN_NAMES and not self._any_host:
            raise ApiError(
                403, f"a server without an API key accepts only requests to localhost, got Host {host[:80]!r}"
            )
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if origin and origin.partition("://")[2] != host and origin not in self._origins:
            raise ApiError(
                403, f"a server without an API key refuses cross-site requests, got Origin {origin[:80]!r}"
            )
        if not origin and headers.get(b"sec-fetch-site") == b"cross-site":  # such as an image of a page
            raise ApiError(403, "a server without an API key refuses requests from another site's page")


_API_KEY = b"x-api-key"  # what clients of Anthropic's API send
_READ = (b"authorization", _API_KEY, b"host", b"origin", b"sec-fetch-site")


def prefix_salt(key: bytes, own: str = "") -> bytes:
    """Return the salt that separates the prefix cache entries of different keys.

    `own`: a salt from the client's request.
    """
    salt = sha256(b"prefix of " + key).digest()[:16] if key else b""
    return salt + sha256(own.encode(errors="replace")).digest()[:16] if own else salt


async def refuse(error: ApiError, scope: Any, send: Any) -> None:
    """Send the error as a response, also to a WebSocket handshake."""
    kind = "http" if scope["type"] == "http" else "websocket.http"
    if kind != "http" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": str(error)[:100]})
        return
    body = error.body(scope)
    headers = {**error.headers, "content-type": "application/json", "content-length": str(len(body))}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    coded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": f"{kind}.response.start", "status": error.status, "headers": coded})
    await send({"type": f"{kind}.response.body", "body": body})
