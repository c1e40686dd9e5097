"""A server whose engine still starts: /health says what it does, and requests wait."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.api.config import EngineConfig
from engine.api.errors import EngineError, ModelNotFound
from engine.host.client import EngineClient
from engine.host.thread import EngineThread
from engine.server.config import ServerConfig
from engine.server.drain import Drain
from engine.server.http.binding import tcp_socket
from engine.server.http.early import EarlyApplication
from engine.server.http.listen import Server, server
from engine.server.startup import Startup
from minichat.cli import parser
from minichat.commands import serve
from tests.cases import soak
from tests.server.conftest import KEY, MODEL, PLAIN, dry, serving, user
from tests.waiting import LIMIT, accepts_connections, becomes, until

ASKED = {"prompt": [5, 6], "max_tokens": 4}


@contextmanager
def starting(**config: object) -> Iterator[tuple[Startup, Server, httpx.Client]]:
    """A server that serves before its engine is there."""
    startup, bound = Startup(), tcp_socket("127.0.0.1", 0)
    built = server(startup, ServerConfig(**{"name": MODEL, "keys": (KEY,), "drain": 2.0} | config))  # type: ignore[arg-type]
    thread = threading.Thread(target=built.run, args=([bound],), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=url, verify=PLAIN, headers=headers, timeout=30) as client:
        yield startup, built, client
    built.end()
    thread.join(20)
    assert not thread.is_alive()


def test_health_reports_the_start_and_requests_wait_for_its_end() -> None:
    engine = dry()
    with starting() as (startup, _, client), ThreadPoolExecutor(2) as pool:
        startup.phase("loading the weights")
        startup.progress(3, 4)
        answer = client.get("/health", headers={"Authorization": "none"})
        record = answer.json()
        assert 0 <= record.pop("seconds") < 30
        assert record == {"status": "loading", "doing": "loading the weights", "share": 0.75}
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert client.head("/health").status_code == 503
        waiting = pool.submit(client.post, "/v1/completions", json=ASKED)
        refused = client.post("/v1/completions", json=ASKED, headers={"Authorization": "Bearer wrong"})
        assert refused.status_code == 401, "a request without the key does not wait"
        assert not waiting.done()
        host = EngineThread(engine)
        startup.host.set_result(host)
        assert waiting.result().json()["usage"]["completion_tokens"] == 4
        assert client.get("/health").json() == {"status": "ready"}
    host.close()


def test_a_browser_may_ask_beforehand_while_the_engine_starts() -> None:
    site = "http://localhost:3000"
    with starting(origins=(site,)) as (_, _, client):
        asked = {"Origin": site, "Access-Control-Request-Method": "POST", "Authorization": ""}
        assert client.options("/v1/completions", headers=asked).status_code == 200


def test_requests_that_wait_for_an_engine_that_does_not_start_get_the_reason() -> None:
    with starting() as (startup, _, client), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.post, "/v1/completions", json=ASKED)
        assert client.get("/v1/models", headers={"Authorization": "none"}).status_code == 401
        startup.host.set_exception(ModelNotFound("no model"))
        answer = waiting.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_dead")
        assert answer.json()["error"]["message"] == "the engine did not start: no model"


def test_requests_that_wait_are_refused_when_the_server_ends() -> None:
    with starting() as (_, built, client), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.post, "/v1/completions", json=ASKED)
        assert becomes(lambda: len(built.server_state.tasks) > 0)
        built.end()
        answer = waiting.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")


def test_the_application_starts_before_its_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests come all the time, also in the moment when it has been built."""
    seen: list[str] = []

    async def fake(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()

    async def ask() -> None:
        messages = asyncio.Queue[Any]()
        messages.put_nowait({"type": "lifespan.startup"})
        early = EarlyApplication(Startup(), ServerConfig(name=MODEL), Drain())
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        living = asyncio.create_task(early({"type": "lifespan"}, messages.get, send))
        requests = []
        while len(seen) < 2:
            await asyncio.sleep(0)
            requests.append(asyncio.create_task(early({"type": "http", "path": "/"}, messages.get, send)))
        messages.put_nowait({"type": "lifespan.shutdown"})
        await asyncio.gather(living, *requests)
        assert sent == [{"type": "lifespan.startup.complete"}], "it is reported once"

    monkeypatch.setattr("engine.server.app.application", lambda *given: fake)
    asyncio.run(ask())
    assert seen[:2] == ["lifespan", "http"]


def test_requests_that_wait_for_an_application_that_fails_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would keep the server from ending until its grace period is over."""
    asked, sent = asyncio.Event(), list[Any]()

    async def fake(scope: Any, receive: Any, send: Any) -> None:
        await asked.wait()
        await send({"type": "lifespan.startup.failed", "message": "broken"})
        raise RuntimeError("broken")

    async def note(message: Any) -> None:
        sent.append(message)

    async def ask() -> list[Any]:
        early = EarlyApplication(Startup(), ServerConfig(name=MODEL), Drain())
        messages = asyncio.Queue[Any]()
        messages.put_nowait({"type": "lifespan.startup"})
        living = asyncio.create_task(early({"type": "lifespan"}, messages.get, note))
        await until(lambda: sent)
        request = asyncio.create_task(early({"type": "http", "path": "/"}, messages.get, note))
        await asyncio.sleep(0)
        asked.set()
        return await asyncio.wait_for(asyncio.gather(living, request, return_exceptions=True), 5)

    monkeypatch.setattr("engine.server.app.application", lambda *given: fake)
    assert list(map(str, asyncio.run(ask()))) == ["broken", "broken"]
    assert sent == [{"type": "lifespan.startup.complete"}], "the server does not take a second report"


def test_a_start_that_fails_ends_the_server_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails: Future[None] = Future()
    monkeypatch.setattr(serve, "engine", lambda *given: fails.result())
    path = tmp_path / "s.sock"
    options = parser().parse_args(["serve", "--no-key", f"--uds={path}", "--device=cpu", "--replicas=2"])
    callbacks = serve.ServerCallbacks(lambda done, total: None, lambda: None, tmp_path / "log")
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve.serve, options, (), callbacks)
        assert becomes(lambda: accepts_connections(path))
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x", timeout=LIMIT
        ) as client:
            assert client.get("/health").json()["status"] == "loading"
        fails.set_exception(EngineError("no memory"))
        with pytest.raises(EngineError, match="no memory"):
            served.result()


@pytest.mark.parametrize(("words", "warm"), [([], True), (["--no-warm"], False)])
def test_no_warm_starts_an_engine_that_does_not_warm_up(
    words: list[str], warm: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(options: object, config: EngineConfig, *given: object) -> EngineClient:
        raise EngineError(f"warm={config.warm}")

    monkeypatch.setattr(serve, "engine", start)
    path = tmp_path / "s.sock"
    options = parser().parse_args(
        ["serve", "--no-key", f"--uds={path}", "--device=cpu", "--replicas=2", *words]
    )
    callbacks = serve.ServerCallbacks(lambda done, total: None, lambda: None, tmp_path / "log")
    with ThreadPoolExecutor(1) as pool, pytest.raises(EngineError, match=f"warm={warm}"):
        pool.submit(serve.serve, options, (), callbacks).result()


@pytest.mark.parametrize("broken", ["app.ServerState", *soak("early.EarlyApplication._build")])
def test_an_application_that_fails_ends_the_server_with_an_error(tmp_path: Path, broken: str) -> None:
    program = f"""
import sys
from engine.server import app
from engine.server.http import early
from minichat import cli
def fails(*given):
    raise RuntimeError("broken")
{broken} = fails
sys.exit(cli.main(["serve", "--no-key", "--dry-run", "--uds", sys.argv[1]]))"""
    environment = os.environ | {"HOME": str(tmp_path)}
    command = [sys.executable, "-c", program, str(tmp_path / "s.sock")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "RuntimeError: broken" in done.stderr


def test_a_signal_ends_a_server_whose_engine_still_starts(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    program = """
import sys, threading
from minichat import cli
from minichat.commands import serve
serve.engine = lambda *given: threading.Event().wait()
sys.exit(cli.main(["serve", "--no-key", "--uds", sys.argv[1], "--replicas", "2", "--device", "cpu"]))"""
    environment = os.environ | {"HOME": str(tmp_path)}
    started = subprocess.Popen([sys.executable, "-c", program, str(path)], env=environment)
    try:
        assert becomes(lambda: accepts_connections(path))
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x", timeout=LIMIT
        ) as client:
            assert client.get("/health").json()["status"] == "loading"
        started.send_signal(signal.SIGTERM)
        assert started.wait(30) == 0
        assert not path.exists()
    finally:
        started.kill()
        started.wait()


def test_a_signal_ends_a_server_whose_application_is_still_imported(tmp_path: Path) -> None:
    """The engine is ready and the port closed when the application is there: nothing is announced."""
    path = tmp_path / "s.sock"
    program = """
import asyncio, sys, threading
from engine.server.http import early, listen
from minichat import cli
closed, build, shutdown = threading.Event(), early.EarlyApplication._build, listen.Server.shutdown
def slow(self):
    closed.wait(30)
    self._startup.host.result(30)
    return build(self)
async def closing(self, sockets=None):
    asyncio.get_running_loop().call_soon(closed.set)
    await shutdown(self, sockets)
early.EarlyApplication._build, listen.Server.shutdown = slow, closing
sys.exit(cli.main(["serve", "--no-key", "--dry-run", "--uds", sys.argv[1]]))"""
    environment = os.environ | {"HOME": str(tmp_path)}
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as started:
        try:
            assert becomes(lambda: accepts_connections(path))
            transport = httpx.HTTPTransport(uds=str(path))
            with httpx.Client(transport=transport, base_url="http://x", timeout=LIMIT) as client:
                assert client.get("/health").json()["status"] == "loading"
            started.send_signal(signal.SIGTERM)
            assert (started.communicate(timeout=30)[1], started.returncode) == ("", 0)
        finally:
            started.kill()


def test_the_helper_for_templates_is_there_before_the_first_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[object] = []
    with serving(dry()) as served, served.client() as client:
        assert becomes(lambda: served.state.preparing.done())
        monkeypatch.setattr(served.host, "text", rendered.append)  # which only the first chat needs
        answer = client.post("/v1/chat/completions", json={"messages": user("hi"), "max_tokens": 1})
        assert (answer.status_code, rendered) == (200, [])
