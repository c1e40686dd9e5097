"""How a server ends: by a signal under load, a step that raises, or an engine that dies."""

import asyncio
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import httpx
import pytest
from websockets.sync.client import connect

from engine.api.config import EngineConfig
from engine.host.process import EngineProcess
from engine.host.restarting import RestartingEngine
from engine.server.drain import Drain
from engine.server.generation import Generation
from minichat.commands.serve import served_names
from minichat.shell.server_keys import own_key
from tests.cli.conftest import Run
from tests.lazily import lazy
from tests.server.conftest import KEY, MODEL, Served, dry, half_read, listening, serving, user
from tests.waiting import LIMIT, accepts_connections, becomes

openai = lazy("openai")


class TestEngineErrors:
    def test_a_step_that_raises_fails_its_replies_with_the_error(self) -> None:
        with serving(dry()) as served, served.client() as client:
            served.break_next_step()
            whole = client.post("/v1/completions", json={"prompt": "x"})
            assert whole.status_code == 500
            assert "the device coughed" in whole.json()["error"]["message"]
            served.break_next_step()
            with pytest.raises(openai.APIError, match="coughed"):
                list(served.openai.completions.create(model=MODEL, prompt="x", stream=True))
            assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 200
            assert served.becomes_idle()

    def test_a_dead_engine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with serving(dry(rate=50)) as served, served.client() as client:
            running = half_read(served, 0)
            assert becomes(lambda: served.host.snapshot().running == 1)

            def dies() -> None:
                raise RuntimeError("a defect")

            monkeypatch.setattr(served.engine.scheduler, "schedule", dies)
            lines_read = b""
            while b"[DONE]" not in lines_read:
                lines_read += running.recv(65536)
            assert b"a defect" in lines_read
            assert becomes(lambda: client.get("/health").status_code == 503)
            assert client.get("/health").json() == {"status": "dead"}
            for path, body in (
                ("/v1/completions", {"prompt": "x"}),
                ("/v1/chat/completions", {"messages": user("x")}),
            ):
                answer = client.post(path, json=body)
                assert answer.status_code == 503
                assert "a defect" in answer.json()["error"]["message"]
            assert client.get("/engine").json()["state"] == "dead"
            metrics = client.get("/metrics").text
            assert 'request_success_total{model_name="test-model",finished_reason="error"} 1\n' in metrics
            assert 'engine_up{model_name="test-model"} 0\n' in metrics
            assert becomes(lambda: served.state.gate.in_flight == 0)

    def test_an_internal_error_is_a_500_without_details(
        self, served: Served, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def breaks() -> None:
            raise ZeroDivisionError("secret insides")

        monkeypatch.setattr(served.state.engine, "snapshot", breaks)
        answer = client.get("/engine")
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert answer.json()["error"]["type"] == "server_error"


@contextmanager
def program(tmp_path: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Run `minichat serve --dry-run` on a socket in the folder, and yield once it serves."""
    path = tmp_path / "s.sock"
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "minichat", "serve", "--dry-run", "--uds", str(path), *words],
        cwd=Path(__file__).parents[3],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x", timeout=LIMIT
        ) as client:

            def answers() -> bool:
                assert process.poll() is None, process.stderr and process.stderr.read()
                try:
                    return client.get("/health").status_code == 200
                except httpx.TransportError:
                    return False

            assert becomes(answers)
        yield process, path
    finally:
        process.kill()
        process.wait()


class TestSignals:
    def test_a_signal_under_load_lets_replies_finish_and_refuses_new_ones(self, tmp_path: Path) -> None:
        with program(tmp_path, "--rate", "40", "--drain", "20") as (process, path):
            key_file = tmp_path / "state" / "minichat" / "server.key"
            assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
            key = key_file.read_text().strip()
            headers = {"Authorization": f"Bearer {key}"}
            transport = httpx.HTTPTransport(uds=str(path), limits=httpx.Limits(max_connections=None))
            with httpx.Client(
                transport=transport, base_url="http://x", headers=headers, timeout=30
            ) as client:
                body = {"prompt": "x", "max_tokens": 40, "ignore_eos": True, "stream": True}
                streams = [client.stream("POST", "/v1/completions", json=body) for _ in range(20)]
                replies = [stream.__enter__() for stream in streams]
                begun = [reply.iter_lines() for reply in replies]
                for lines in begun:
                    next(lines)
                events = client.stream("GET", "/events")
                watching = events.__enter__()
                with socket.socket(socket.AF_UNIX) as stranger:
                    stranger.connect(str(path))
                    stranger.sendall(b"what is this?\r\n\r\n")
                    assert stranger.recv(12) == b"HTTP/1.1 400"
                process.send_signal(signal.SIGTERM)
                for lines in begun:
                    lines_read = [line for line in lines if line]
                    assert lines_read[-1] == "data: [DONE]"
                    assert (
                        json.loads(lines_read[-2].removeprefix("data: "))["choices"][0]["finish_reason"]
                        == "length"
                    )
                assert "event: ending" in list(watching.iter_lines())  # it ends on its own, and says so
                with pytest.raises(httpx.TransportError):
                    client.get("/health")
            assert process.wait(LIMIT) == 0
            assert not path.exists()
            errors = process.stderr and process.stderr.read()
            assert "Traceback" not in (errors or "") and "Invalid" not in (errors or "")
            assert key not in (errors or "")
            waits = r"minichat: waiting up to 20 s for \d+ running requests; send another signal"
            assert re.search(waits, errors or "")

    def test_a_reply_that_outlasts_the_drain_is_aborted(self) -> None:
        with serving(dry(rate=20), drain=0.3) as served, served.client() as client:
            body = {"prompt": "x", "max_tokens": 3000, "ignore_eos": True, "stream": True}
            with client.stream("POST", "/v1/completions", json=body) as reply:
                lines = reply.iter_lines()
                next(lines)
                served.server.end()  # as a signal does
                lines_read = [line for line in lines if line]
            assert json.loads(lines_read[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "abort"

    def test_a_reply_that_starts_while_the_server_ends_is_finished(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start = Generation.start
        with serving(dry()) as served:

            async def starts_late(generation: Generation) -> None:
                served.server.end()
                await served.state.drain.wait()
                await asyncio.sleep(0)  # let the socket see the drain, too
                await start(generation)

            monkeypatch.setattr(Generation, "start", starts_late)
            with connect(
                f"ws://127.0.0.1:{served.port}/ws", additional_headers={"Authorization": f"Bearer {KEY}"}
            ) as client:
                client.send(json.dumps({"type": "generate", "id": "a", "prompt": "tell me"}))
                kinds = [json.loads(message)["type"] for message in client]
            assert (kinds[0], kinds[-1]) == ("started", "done")

    def test_streams_end_at_the_first_signal(self) -> None:
        """Not when uvicorn looks at it next: a second signal may come before."""
        with serving(dry()) as served:
            drain, server = Drain(), served.server

            async def ends_within_a_tick() -> None:
                with server.capture_signals():
                    signal.raise_signal(signal.SIGTERM)
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)

            with patch.object(server, "_drain", drain):
                asyncio.run(ends_within_a_tick())
                assert drain.begun

    @pytest.mark.parametrize(
        ("number", "running", "said"),
        [
            (
                signal.SIGINT,
                2,
                ["waiting up to 2 s for 2 running requests; press Ctrl+C again to stop at once"],
            ),
            (
                signal.SIGTERM,
                1,
                ["waiting up to 2 s for 1 running request; send another signal to stop at once"],
            ),
            (signal.SIGINT, 0, []),
        ],
    )
    def test_a_signal_says_what_the_server_waits_for(
        self, caplog: pytest.LogCaptureFixture, number: signal.Signals, running: int, said: list[str]
    ) -> None:
        with serving(dry(), drain=2.0) as served:
            drain, server = Drain(), served.server
            drain.running = lambda: running

            async def ends() -> None:
                with server.capture_signals():
                    signal.raise_signal(number)
                    for _ in range(3):
                        await asyncio.sleep(0)

            with patch.object(server, "_drain", drain):
                asyncio.run(ends())
            assert caplog.messages == said

    def test_signals_are_handled_again_after_a_library_took_them(self) -> None:
        """Ray does while the engine starts."""
        with serving(dry()) as served:
            server, seen = served.server, list[int]()
            assert threading.current_thread() is threading.main_thread()
            before = signal.getsignal(signal.SIGTERM)
            with server.capture_signals():
                signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
                server.keeps_signals = True
                asyncio.run(server.on_tick(1))
                signal.raise_signal(signal.SIGTERM)
            assert signal.getsignal(signal.SIGTERM) is before
            assert server.should_exit and not seen

    def test_a_second_signal_ends_it_at_once(self, tmp_path: Path) -> None:
        rate = 20  # tokens a second at most, so more of them than fit into the time are later ones
        with program(tmp_path, f"--rate={rate}", "--no-key", "--drain=3600") as (process, path):
            transport = httpx.HTTPTransport(uds=str(path))
            with httpx.Client(transport=transport, base_url="http://x", timeout=30) as client:
                body = {"prompt": "x", "max_tokens": 9000, "ignore_eos": True, "stream": True}
                began = time.monotonic()
                with client.stream("POST", "/v1/completions", json=body) as reply:
                    lines = filter(None, reply.iter_lines())
                    next(lines)
                    process.send_signal(signal.SIGTERM)
                    assert becomes(lambda: not accepts_connections(path))
                    for _ in range(int(rate * (time.monotonic() - began)) + 3):
                        next(lines)
                    assert process.poll() is None, "the first signal ended the process"
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(LIMIT) == 128 + signal.SIGTERM
            assert not path.exists()


class TestCommand:
    def test_unsafe_or_contradictory_options_are_refused(self, tmp_path: Path, run: Run) -> None:
        empty, short, shared, own = (tmp_path / name for name in ("empty", "short", "shared", "own"))
        for file, text in (empty, "# no key\n"), (short, "abc\n"), (shared, f"{KEY}\n"), (own, f"{KEY}\n"):
            file.write_text(text)
            file.chmod(0o644 if file is shared else 0o600)
        for words, sentence in (
            (["--no-key", "--host", "0.0.0.0"], "--insecure"),
            (["--no-key", "--host", "example.org"], "--insecure"),
            (["--insecure"], "--insecure has no effect without --no-key"),
            (["--uds", str(tmp_path / "s"), "--port", "9000"], "--port has no effect with --uds"),
            (["--uds", str(tmp_path / "s"), "--host", "0.0.0.0"], "--host has no effect with --uds"),
            (["--uds", str(tmp_path / "s"), "--port", "8000"], "--port has no effect with --uds"),
            (["--uds", str(tmp_path / "s"), "--host", "127.0.0.1"], "--host has no effect with --uds"),
            (["--no-key", "--api-key-file", str(empty)], "cannot be combined"),
            (["--tls-cert", str(empty)], "must be used together"),
            (["--tls-cert", "none", "--tls-key", "none"], "none does not exist"),
            (["--tls-cert", str(own), "--tls-key", str(own)], "are not a certificate and its key: "),
            (["--api-key-file", str(empty)], "contains no key"),
            (["--api-key-file", str(short)], "use 16 or more"),
            (["--api-key-file", str(tmp_path)], "cannot read"),
            (["--api-key-file", str(shared)], "readable by others"),
            (["--cors", "localhost"], "not an origin"),
            (["--cors", "*", "--no-key"], "any web page"),
            (["--rate", "5"], "--dry-run"),
            (["--max-in-flight", "0"], "at least 1"),
            (["--port", "70000"], "--port must be from 0 to 65535, got 70000"),
            (["--port", "-1"], "--port must be from 0 to 65535"),
            (["--max-per-key", "-3"], "at least 1"),
            (["--max-priority", "-1"], "--max-priority must be at least 0, got -1"),
            (["--max-body", "0"], "from 1 to 1024 MiB"),
            (["--restart", "-1"], "--restart must be at least 0, got -1"),
            (["--dry-run", "--draft", "pocket"], "--draft has no effect with --dry-run"),
            (["--dry-run", "--kv", "int8"], "--kv has no effect with --dry-run"),
            (["--dry-run", "--no-warm"], "--no-warm has no effect with --dry-run"),
            (["--prefill-gpus", "1", "--decode-gpus", "1", "--meet", "a:1:b"], "run on this machine"),
            (["--dry-run", "--meet", f"a:1:{own}"], "--meet has no effect with --dry-run"),
            (
                ["--tp", "2", "--meet", "a:1:b", "--replicas", "2"],
                "--meet cannot be combined with --replicas",
            ),
            (["--tp", "2", "--meet", "a:1"], "--meet must be HOST:PORT:FILE"),
            (["--tp", "2", "--meet", f"a:1:{shared}"], "others may read the secret"),
            (["--metrics-prefix", "9x"], "letters, digits"),
            (["--served-name", "sql", "--adapter", "sql=/sql"], "'sql' is the model's name; choose another"),
            (["--drain", "nan"], "from 0 to 3600"),
            (["--drain", "-1"], "from 0 to 3600"),
            (["--dry-run", "--rate", "-5"], "above 0"),
        ):
            ended = run("serve", *words)
            assert ended.code == 2
            assert sentence in ended.err
            assert re.fullmatch(r"minichat: .*\n", ended.err)

    def test_a_rank_needs_a_place_and_a_secret(self, tmp_path: Path, run: Run) -> None:
        for place, sentence in (
            ("10.0.0.5", "the address must be HOST:PORT:FILE"),
            (f"127.0.0.1:7000:{tmp_path / 'none'}", "cannot read the secret"),
        ):
            ended = run("rank", place)
            assert (ended.code, ended.out) == (2, "")
            assert sentence in ended.err

    def test_a_model_is_served_by_the_last_part_of_its_path(self, tmp_path: Path) -> None:
        (tmp_path / "Qwen3-0.6B").mkdir()
        for model, given, names in (
            ("Qwen/Qwen3-0.6B", None, ["Qwen/Qwen3-0.6B"]),
            (str(tmp_path / "Qwen3-0.6B"), None, ["Qwen3-0.6B"]),
            (f"{tmp_path}/Qwen3-0.6B/", None, ["Qwen3-0.6B"]),
            ("pocket", ["gpt-4"], ["gpt-4"]),
            ("pocket", ["gpt-4", "small", "gpt-4"], ["gpt-4", "small"]),
        ):
            assert served_names(Namespace(model=model, served_name=given)) == names

    def test_a_key_file_that_others_can_read_is_refused(
        self, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "deep" / "server.key"
        with ThreadPoolExecutor(8) as starting:
            [key] = set(starting.map(own_key, [file] * 8))  # all at once, with no file yet
        assert len(key) > 40
        assert [each.name for each in file.parent.iterdir()] == [file.name]
        file.chmod(0o644)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        (tmp_path / "deep").rename(tmp_path / "minichat")
        ended = run("serve", "--dry-run")
        assert (ended.code, "chmod 600" in ended.err) == (2, True)
        assert KEY not in ended.err


def test_health_while_a_killed_engine_is_restarted(tmp_path: Path) -> None:
    may_start = threading.Event()

    def start(first: int) -> EngineProcess:
        assert not first or may_start.wait(LIMIT)
        config = EngineConfig(model="pocket", blocks=64, first_request=first)
        return EngineProcess(config, tmp_path / "engine.log", dry_rate=20.0)

    engine = RestartingEngine(start, restarts=1, pauses=(0.0,))
    with listening(engine, keys=()) as (port, _):
        url = f"http://127.0.0.1:{port}"
        body = {"prompt": [7, 8], "max_tokens": 900, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=20) as stream:
            lines = stream.iter_lines()
            next(lines)
            os.kill(engine.pid, signal.SIGKILL)
            assert any("killed by SIGKILL" in line for line in lines)
        assert becomes(lambda: httpx.get(f"{url}/health").json() == {"status": "restarting"})
        assert httpx.get(f"{url}/health").status_code == 503
        refused = httpx.post(f"{url}/v1/completions", json={"prompt": [7], "max_tokens": 1})
        assert refused.status_code == 503
        assert "it is being restarted" in refused.json()["error"]["message"]
        may_start.set()
        assert becomes(lambda: httpx.get(f"{url}/health").status_code == 200)
        assert httpx.post(f"{url}/v1/completions", json={"prompt": [7], "max_tokens": 1}).status_code == 200
        text = httpx.get(f"{url}/metrics").text
        assert re.search(r'request_success_total\{[^}]*finished_reason="[a-z]+"\} 1', text)
