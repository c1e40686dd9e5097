"""Servers on real sockets. Most run the real engine with a fake model whose replies are made up."""

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import uvicorn.server

from engine.api.config import EngineConfig
from engine.api.params import SamplingParams
from engine.dry import DryRunner, Script, dry_engine, random_words
from engine.host.client import EngineClient
from engine.host.thread import EngineThread
from engine.scheduling.step import Step
from engine.server.config import ServerConfig
from engine.server.http.binding import tcp_socket
from engine.server.http.listen import Server, server
from engine.server.state import ServerState
from engine.serving.engine import Engine
from engine.text.chat import ChatFormat
from engine.text.template import TemplateRenderer
from engine.text.tokenizer import Tokenizer
from tests.cli.conftest import run
from tests.runner.letters import byte_tokenizer
from tests.waiting import LIMIT, becomes

__all__ = ["run"]  # the command line fixture, also used here

KEY = "sk-test-0123456789abcdef"
OWNER = sha256(KEY.encode()).digest()  # of the replies that this key began
MODEL = "test-model"
PLAIN = ssl.create_default_context()  # no test with it uses TLS, and making a context for each client is slow
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def _tick_faster() -> None:
    """Divide uvicorn's waits of 0.1 s by 20: most of the time of a test's server is its end."""
    uvicorn.server.asyncio = copied = ModuleType("asyncio")  # type: ignore[attr-defined]
    vars(copied).update(vars(asyncio), sleep=lambda seconds: asyncio.sleep(seconds / 20))


_tick_faster()


class _KeptRenderer(TemplateRenderer):
    """One helper process for the servers of all tests: starting one takes more time than most tests."""

    def close(self) -> None:
        """It ends with the tests."""


_RENDERER = _KeptRenderer()


@dataclass
class Served:
    """A running server, and the engine and host behind it."""

    port: int
    engine: Engine
    host: EngineThread
    server: Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def state(self) -> ServerState:
        state: ServerState = self.server.config.app.built.state.server  # type: ignore[union-attr]
        return state

    @property
    def runner(self) -> DryRunner:
        assert isinstance(self.engine.runner, DryRunner)
        return self.engine.runner

    def client(self, **options: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {KEY}"}
        return httpx.Client(base_url=self.url, verify=PLAIN, **{"headers": headers, "timeout": 30} | options)

    @cached_property
    def openai(self) -> Any:
        """OpenAI's own client."""
        from openai import OpenAI  # a large package, which every test process would import

        return OpenAI(api_key=KEY, base_url=f"{self.url}/v1", max_retries=0)

    def break_next_step(self) -> None:
        """Let the next step raise an error."""
        runner, good = self.runner, self.runner.broken

        def breaks(step: Step) -> None:
            runner.broken = good
            raise RuntimeError("the device coughed")

        runner.broken = breaks

    @contextmanager
    def at_full_speed(self) -> Iterator[None]:
        """For the rest of a reply that has to outlast what a test does with it."""
        runner, seconds = self.runner, self.runner._seconds
        runner._seconds = 0.0
        try:
            yield
        finally:
            runner._seconds = seconds

    def blocks_in_use(self) -> int:
        return self.host.snapshot().blocks.in_use

    def becomes_idle(self) -> bool:
        """Return whether the engine becomes idle and holds no blocks."""
        return becomes(lambda: self.blocks_in_use() == 0 and self.state.gate.in_flight == 0)


@contextmanager
def serving(engine: Engine, *, buffer: int = 0, warm: bool = False, **config: Any) -> Iterator[Served]:
    """`buffer`: size of the socket's send buffer in bytes; 0: the system's default."""
    host = EngineThread(engine, warm=warm, chat=ChatFormat(engine.tokenizer, _RENDERER))
    with listening(host, buffer, **config) as (port, built):
        yield Served(port, engine, host, built)


@contextmanager
def listening(host: EngineClient, buffer: int = 0, **config: Any) -> Iterator[tuple[int, Server]]:
    """Run a server over any host and close the host at the end. Yield its port and the server."""
    bound = tcp_socket("127.0.0.1", 0)
    if buffer:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    built = server(host, ServerConfig(**{"name": MODEL, "keys": (KEY,), "drain": 2.0} | config))
    thread = threading.Thread(target=built.run, args=([bound],), name="test-server", daemon=True)
    thread.start()
    try:
        assert becomes(lambda: built.started)
        yield bound.getsockname()[1], built
    finally:
        built.end()
        thread.join(20)
        host.close()
        assert not thread.is_alive(), "the server did not stop"


def dry(script: Script | None = None, rate: float | None = None, **config: Any) -> Engine:
    return dry_engine(EngineConfig(**{"model": "pocket", "blocks": 4096} | config), rate=rate, script=script)


def saying(
    folder: Path,
    text: str,
    template: str | None = TEMPLATE,
    seen: list[str] | None = None,
    rate: float | None = None,
    starts: bool = False,
    **config: Any,
) -> Engine:
    """An engine whose every reply is this text, with a byte or two a token. `seen` gets its prompts.

    `rate`: tokens a second, or None: as fast as they come. `starts`: a plain prompt gets a start token.
    """
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"chat_template": template, "eos_token": "</s>", "bos_token": "<s>", "add_bos_token": starts}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.load(folder)
    tokens = tokenizer.encode(text)
    options: dict[str, Any] = {"model": "pocket", "blocks": 4096} | config

    def script(prompt: Sequence[int], params: SamplingParams) -> list[int]:
        if seen is not None:
            seen.append(tokenizer.decode(prompt))
        return list(tokens)

    return dry_engine(EngineConfig(**options), rate=rate, script=script, tokenizer=tokenizer)


@pytest.fixture(scope="package")
def served() -> Iterator[Served]:
    """A server shared by all tests that do not change its state. Replies come without delay."""
    with serving(dry()) as one:
        yield one


@pytest.fixture(scope="package")
def slow() -> Iterator[Served]:
    """A server whose replies come at 50 tokens a second."""
    with serving(dry(rate=50)) as one:
        yield one


@pytest.fixture
def client(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


@pytest.fixture(scope="package")
def expected() -> Iterator[Callable[..., str]]:
    """Return a function that gives the fake model's reply to a message."""
    folder = Path(__file__).parents[2] / "engine" / "pocket"
    tokenizer = Tokenizer.load(folder)
    script = random_words(tokenizer)

    with ChatFormat(tokenizer) as chat:

        def reply(message: str, seed: int | None = None) -> str:
            prompt = chat.prompt([{"role": "user", "content": message}])
            return tokenizer.decode(script(prompt, SamplingParams(seed=seed)))

        yield reply


def raw(served: Served, *lines: str | bytes) -> bytes:
    """Send these lines as a request head; return all the server sends until it closes the connection."""
    coded = [line.encode() if isinstance(line, str) else line for line in lines]
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        connection.sendall(b"\r\n".join([*coded, b"Host: localhost", b"Connection: close", b"", b""]))
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer


def posted(served: Served, path: str, fields: Any, buffer: int = 0) -> socket.socket:
    """Send a request and return its socket. `buffer`: its size in bytes for what arrives; 0: the default."""
    connection = socket.socket()
    if buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.settimeout(LIMIT)
    connection.connect(("127.0.0.1", served.port))
    body = json.dumps(fields)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall((head + body).encode())
    return connection


def half_read(served: Served, number: int, buffer: int = 0, **more: Any) -> socket.socket:
    """Return the socket of a long stream that has begun and is not read to its end."""
    asked: dict[str, Any] = {"prompt": f"vanish {number}", "max_tokens": 3000, "ignore_eos": True}
    asked |= {"stream": True, "stream_options": {"include_usage": True}}
    return posted(served, "/v1/completions", asked | more, buffer)


def vanish(served: Served, path: str, fields: Any, replies: int = 1) -> None:
    """Disconnect while the replies to a request run, and check that they are aborted."""
    with posted(served, path, fields):
        assert becomes(lambda: served.host.snapshot().running == replies)
    assert served.becomes_idle()


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]
