"""Who may come in: the key, the host a request names, the site it comes from."""

import hmac
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from engine.api.errors import Ending
from engine.server.config import ServerConfig
from engine.server.http.errors import ApiError, from_engine

App = Callable[[Any, Any, Any], Any]
OPEN = "/health"  # the one path that asks for no key
KEY = "minichat.key"  # in a scope: the digest of the key that opened
NOBODY = b""
_OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")


class AuthMiddleware:
    """The outermost layer: a request that does not pass never reaches a route."""

    def __init__(self, app: App, config: ServerConfig, closing: Callable[[], bool]) -> None:
        self._app, self._closing = app, closing
        self._digests = [sha256(key.encode()).digest() for key in config.keys]
        self._any_host = config.any_host

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
        scope[KEY] = NOBODY
        if scope["type"] == "http" and scope["path"] == OPEN:
            return
        if self._digests:
            scope[KEY] = self._key(headers.get(b"authorization", b""))
        else:
            self._no_strangers(headers)
        if self._closing():
            raise from_engine(Ending("the server is ending"))

    def _key(self, given: bytes) -> bytes:
        """The digest of a right key. Every known one is compared, each in constant time."""
        kind, _, key = given.partition(b" ")
        digest = sha256(key.strip()).digest()
        found = [each for each in self._digests if hmac.compare_digest(each, digest)]
        if kind.lower() == b"bearer" and found:
            return found[0]
        problem = "this key opens nothing here" if given else "a key is missing"
        where = "whoever started the server was told then where it is kept"
        raise ApiError(
            401, f"{problem}; send it as 'Authorization: Bearer KEY' ({where})", code="invalid_api_key"
        )

    def _no_strangers(self, headers: Mapping[bytes, bytes]) -> None:
        """Without a key, pages in this machine's browser must not reach the engine, by whatever name."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host if host.endswith("]") else host.rsplit(":", 1)[0] if ":" in host else host
        if host and name not in _OWN_NAMES and not self._any_host:
            raise ApiError(
                403, f"without a key, only requests to localhost are answered, not to {host[:80]!r}"
            )
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if origin and origin.partition("://")[2] != host:
            raise ApiError(403, f"without a key, pages of other sites are not answered: {origin[:80]!r}")


_READ = (b"authorization", b"host", b"origin")


def prefix_salt(key: bytes) -> bytes:
    """What keeps the prompts of different keys apart in the prefix cache."""
    return sha256(b"prefix of " + key).digest()[:16] if key else b""


async def refuse(error: ApiError, scope: Any, send: Any) -> None:
    """The error as an answer, also to one who asked for a WebSocket."""
    kind = "http" if scope["type"] == "http" else "websocket.http"
    if kind != "http" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": str(error)[:100]})
        return
    body = error.body()
    headers = {**error.headers, "content-type": "application/json", "content-length": str(len(body))}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    coded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": f"{kind}.response.start", "status": error.status, "headers": coded})
    await send({"type": f"{kind}.response.body", "body": body})
