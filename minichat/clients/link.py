"""The connection to a remote engine, which reconnects automatically."""

import asyncio
import json
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, suppress
from ssl import SSLCertVerificationError as CertificateError
from ssl import SSLContext
from typing import Any, NamedTuple, Protocol

import httpx

from engine.api.errors import BadInput, BadWire, Ending, EngineDead, EngineError
from engine.api.wire import check_version, decode_error
from minichat.clients.address import KEY_VARIABLE, Address
from minichat.clients.sse import ServerEvent, messages

_CONNECT, _ANSWER = 10.0, 60.0  # seconds
SILENCE = 35.0  # seconds without data; the server sends a keepalive every 15 s
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.1, 10.0, 1.7  # seconds between two attempts, and their growth
_BETWEEN = (502, 504)  # a proxy cannot reach the server
_SHUT_DOWN = "the server has shut down, or will soon"  # running replies may end first, of other screens too

_WAYS = {  # by the code of OpenSSL: self-signed, or of an unknown issuer; of another name or address
    **dict.fromkeys((18, 19, 20, 21), "; set SSL_CERT_FILE to trust others"),
    **dict.fromkeys((62, 64), "; use the name in it"),
}


class Cut(Exception):
    """The connection is lost; the message says why."""


class Stopping(Cut):
    """The server shuts down, and has said so."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class Foreign(EngineError):
    """The response is not from our engine but from a proxy or another program."""


class Hello(NamedTuple):
    """A server's identification."""

    boot: str  # changes with each start of the server
    model: str
    has_template: bool
    opens_thinking: bool = False
    last_event: str = ""  # the id of the newest event; empty from an older server


class Watcher(Protocol):
    """Receives changes of the connection's state."""

    def lost(self, why: str, *, stopped: bool) -> None:
        """Requests wait until it is back. `stopped`: the server has said that it ends."""
        ...

    def back(self, hello: Hello) -> None: ...

    def ended(self, why: str, *, answers: bool) -> None:
        """Requests fail: the server refuses this screen, or has ended; in the latter case it may be back."""
        ...


class NoWatcher:
    """A watcher that ignores everything, for one or two requests."""

    def lost(self, why: str, *, stopped: bool) -> None: ...

    def back(self, hello: Hello) -> None: ...

    def ended(self, why: str, *, answers: bool) -> None: ...


class Gone(Protocol):
    """Says why the server has ended for certain; empty while it may answer. `told`: it has said so itself."""

    def __call__(self, *, told: bool) -> str: ...


def _maybe_back(*, told: bool) -> str:
    """A server on another machine may come back at any time."""
    return ""


class Link:
    """Requests made while the connection is down wait until it is restored."""

    def __init__(
        self,
        address: Address,
        watcher: Watcher | None = None,
        gone: Gone = _maybe_back,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`transport`: how requests are sent; by default over the network."""
        self.address, self._transport = address, transport
        self._watcher, self._gone = watcher or NoWatcher(), gone
        self._client: httpx.AsyncClient | None = None
        self._up = asyncio.Event()
        self._over = "not connected yet"
        self._returning: asyncio.Task[None] | None = None

    async def open(self) -> Hello:
        """Connect or reconnect. Raises an error about the address, the key or the server."""
        await self.close()
        self._client = _client(self.address, self._transport)
        try:
            hello = await self._hello()
        except Cut as cut:
            hint = _of_scheme(self.address.url, cut)
            raise EngineDead(f"no answer from {self.address.words}: {cut}{hint}") from None
        self._over = ""
        self._up.set()
        return hello

    async def close(self) -> None:
        self._over = "the connection was closed"
        if self._returning is not None:
            self._returning.cancel()
        self._up.set()  # release the waiting requests
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
        self._up = asyncio.Event()

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the JSON response. The request may be sent twice if the connection breaks in between."""
        while True:
            client = await self._wait()
            try:
                return _read(await _send(client, method, path, body))
            except Cut as cut:
                self.cut(cut)

    async def follow(self, path: str, last: Callable[[], str]) -> AsyncIterator[ServerEvent]:
        """Yield events after the id that `last` returns, resuming after each cut, until the event `end`."""
        while True:
            client = await self._wait()
            try:
                async with aclosing(_stream(client, path, last())) as stream:
                    async for message in stream:
                        yield message
                        if message.kind == "end":
                            return
                raise Cut("the server closed the stream")
            except Cut as cut:
                self.cut(cut)

    async def ready(self) -> None:
        """Wait until the connection is up; raise if it will not come back."""
        await self._wait()

    def cut(self, cut: Cut) -> None:
        """Mark the connection as down. Each user notices independently; the first one starts reconnecting."""
        if self._up.is_set() and not self._over:
            self._up.clear()
            self._watcher.lost(str(cut), stopped=isinstance(cut, Stopping))
            self._returning = asyncio.create_task(self._restore(cut), name="link")

    def await_return(self) -> None:
        """Look for a server that has ended, while requests fail."""
        self._client = self._client or _client(self.address, self._transport)
        self._returning = asyncio.create_task(self._restore(Cut(self._over)), name="link")

    async def _wait(self) -> httpx.AsyncClient:
        while not self._up.is_set() and not self._over:
            await self._up.wait()
        if self._over or self._client is None:
            raise EngineDead(self._over)
        return self._client

    async def _restore(self, known: Cut) -> None:
        """Reconnect, first immediately and then with growing pauses."""
        pause, why, stopped = _FIRST_PAUSE, str(known), isinstance(known, Stopping)
        while True:
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # jitter
            pause = min(pause * _GROWTH, _LONGEST_PAUSE)
            try:
                hello = await self._hello()
            except Cut as cut:
                stopped = stopped or isinstance(cut, Stopping)
                if self._over:
                    continue
                if gone := self._gone(told=stopped):
                    self._end(gone)
                    continue
                now = _SHUT_DOWN if stopped and not isinstance(cut, Stopping) else str(cut)
                if now != why:
                    why = now
                    self._watcher.lost(why, stopped=stopped)
            except EngineError as error:  # the server answers but refuses us
                self._end(str(error), answers=True)
                return
            else:
                self._over = ""
                self._watcher.back(hello)
                self._up.set()
                return

    def _end(self, why: str, *, answers: bool = False) -> None:
        self._over = why
        self._up.set()
        self._watcher.ended(why, answers=answers)

    async def _hello(self) -> Hello:
        assert self._client is not None
        place = self.address.words
        try:
            answer = _read(await _send(self._client, "GET", "/engine"))
        except Foreign as foreign:
            raise BadWire(
                f"the server at {place} is not a minichat engine: GET /engine returned {foreign}"
            ) from None
        if type(answer) is not dict or "boot" not in answer:
            raise BadWire(f"the server at {place} is not a minichat engine")
        check_version("engine", answer)
        model, last_event = str(answer.get("model", "")), str(answer.get("last_event", ""))
        template, opens = (bool(answer.get(each)) for each in ("has_template", "opens_thinking"))
        return Hello(str(answer["boot"]), model, template, opens, last_event)


def _certificates() -> SSLContext:
    """Those that are trusted. It obeys SSL_CERT_FILE also for addresses of this machine, as of a tunnel."""
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        file, why = os.environ.get("SSL_CERT_FILE", ""), error.strerror or error
        raise BadInput(f"cannot read the certificates of SSL_CERT_FILE, {file}: {why}") from None


def _client(address: Address, transport: httpx.AsyncBaseTransport | None) -> httpx.AsyncClient:
    secure = address.url.startswith("https:")
    limits = httpx.Limits(max_connections=None)
    if address.uds and transport is None:
        transport = httpx.AsyncHTTPTransport(uds=address.uds, verify=False, limits=limits)
    return httpx.AsyncClient(
        base_url=address.url,
        headers=address.headers,
        timeout=httpx.Timeout(_ANSWER, connect=_CONNECT),
        verify=_certificates() if secure else False,  # creating a context is slow
        trust_env=not address.near,  # a proxy from the environment cannot reach this machine's localhost
        limits=limits,
        transport=transport,
    )


async def _send(client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> httpx.Response:
    try:
        return await client.request(method, path, json=body)
    except (httpx.RequestError, httpx.InvalidURL, RuntimeError) as error:
        raise Cut(_why(error)) from error


async def _stream(client: httpx.AsyncClient, path: str, last: str) -> AsyncGenerator[ServerEvent, None]:
    headers = {"last-event-id": last} if last else {}
    timeout = httpx.Timeout(SILENCE, connect=_CONNECT)
    try:
        async with client.stream("GET", path, headers=headers, timeout=timeout) as response:
            if response.status_code != httpx.codes.OK:
                await response.aread()
                _read(response)
            async for message in messages(response.aiter_bytes()):
                yield message
    except (httpx.RequestError, RuntimeError) as error:
        raise Cut(_why(error)) from None


def _read(response: httpx.Response) -> Any:
    """The response as JSON; a refusal is raised as the engine's error."""
    if response.is_success and not response.content:
        return None
    if response.has_redirect_location:
        raise BadInput(f"{response.url} redirects to {response.headers['location']!r:.200}; use that address")
    answer: Any = None
    with suppress(ValueError):
        answer = json.loads(response.content)
    if response.is_success:
        if answer is None:
            raise BadWire(f"{response.url} returned invalid JSON")
        return answer
    raise _refusal(response, answer)


def _refusal(response: httpx.Response, answer: Any) -> Exception:
    """The error sent by the engine; for another server, its status."""
    known = answer if type(answer) is dict else {}
    if "engine" in known:
        error = decode_error(known["engine"])
        if response.status_code == httpx.codes.UNAUTHORIZED:  # the server's words are about HTTP
            problem, _, _ = str(error).partition(";")
            return BadInput(
                f"{problem}; use --api-key-file FILE or set {KEY_VARIABLE} "
                "(the server prints at startup where the key is stored)"
            )
        return Stopping() if isinstance(error, Ending) else error
    if response.status_code in _BETWEEN:
        return Cut(f"{response.status_code} {response.reason_phrase}")
    return Foreign(f"{response.status_code} {response.reason_phrase}")


def _why(error: Exception) -> str:
    """Describe the error for users: messages of httpx and the system are meant for programmers."""
    match error:
        case httpx.ConnectTimeout():
            return f"no connection within {_CONNECT:g} s"
        case httpx.ReadTimeout():
            return "it stopped responding"
        case httpx.ConnectError() if found := [
            each for each in _causes(error) if isinstance(each, CertificateError)
        ]:
            return f"its certificate is not trusted ({error}){_WAYS.get(found[0].verify_code, '')}"
        case httpx.ConnectError():  # several addresses that fail together have no errno
            failure = next((each for each in _causes(error) if isinstance(each, OSError)), None)
            return f"no connection ({failure.strerror})" if failure and failure.errno else "no connection"
        case httpx.RequestError():
            return "the connection was lost"
    return str(error) or type(error).__name__


def _of_scheme(url: str, cut: Cut) -> str:
    """How to write the address, if only one of the two has TLS."""
    causes = list(_causes(cut))
    if url.startswith("http:") and any(isinstance(each, httpx.RemoteProtocolError) for each in causes):
        return "; with TLS, its address begins with https://"
    if any(getattr(each, "reason", "") == "WRONG_VERSION_NUMBER" for each in causes):  # of an SSLError
        return "; without TLS, its address begins with http://"
    return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes: httpx wraps system errors twice."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
