"""minichat up, ps and down: background engines of this user, through crashes and restarts."""

import asyncio
import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, unix_connect

from engine.api.errors import BadInput, EngineError
from engine.api.events import Died, Handler
from engine.host.thread import EngineThread
from engine.server.http import listen
from engine.server.http.listen import Server
from minichat.cli import parser
from minichat.commands import serve, up
from minichat.commands.resident import RecordWriter
from minichat.models import residents
from minichat.models.residents import Record, Resident, Waiting, home_of
from minichat.models.watching import watch
from minichat.shell.paths import locate
from tests.cli.conftest import Run, run
from tests.server.conftest import dry
from tests.waiting import LIMIT, accepts_connections, becomes

__all__ = ["run"]

RATE = 40  # tokens a second
ENDLESS = {"max_tokens": 10_000, "ignore_eos": True}


class User:
    """A user with a home folder and a command line."""

    def __init__(self, run: Run, home: Path) -> None:
        self._run = run
        self.resident = Resident(home_of(locate({"HOME": str(home)})))

    def say(self, *words: str) -> tuple[int, str, str]:
        return self._run(*words)

    def up(self, *words: str) -> None:
        code, _, err = self.say("up", "--no-screen", "--dry-run", f"--rate={RATE}", *words)
        assert code == 0, err

    def ps(self) -> list[dict[str, Any]]:
        code, out, err = self.say("ps", "--json")
        assert code == 0, err
        lines: list[dict[str, Any]] = json.loads(out)
        return lines

    def client(self) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=str(self.resident.socket))
        return httpx.Client(transport=transport, base_url="http://localhost", timeout=30)


@pytest.fixture
def user(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    one = User(run, tmp_path)
    yield one
    one.resident.tell(signal.SIGKILL)


def begin_reply(client: httpx.Client, tokens: int) -> str:
    params = {"max_tokens": tokens, "ignore_eos": True}
    answer = client.post("/engine/replies", json={"prompt": "tell me", "params": params, "keep": True})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def end_once_no_other_is_accepted(reply: ClientConnection, resident: Resident) -> str:
    """Shorten a reply once the engine is shutting down. Return what it sends from now on."""
    sent = ""
    assert becomes(lambda: not accepts_connections(resident.socket))
    reply.send(json.dumps({"type": "update", "id": "a", "changes": {"max_tokens": 1}}))
    while '"done"' not in sent:
        sent += str(reply.recv(LIMIT))
    return sent


def test_folders_are_those_of_the_user_not_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sql").mkdir()
    (tmp_path / "small").mkdir()
    monkeypatch.chdir(tmp_path)
    given = ["--adapter", "a=sql", "--adapter", "b=someone/sql", "--draft", "small", "--kv-disk", "kv:2"]
    options = parser().parse_args(["up", *given])
    up._from_here(options)
    assert options.adapter == [f"a={tmp_path.resolve() / 'sql'}", "b=someone/sql"]
    assert (options.draft, options.kv_disk) == (str(tmp_path.resolve() / "small"), f"{tmp_path / 'kv'}:2")
    options = parser().parse_args(["up", "--draft", "mtp", "--kv-disk", "auto"])
    up._from_here(options)
    assert (options.adapter, options.draft, options.kv_disk) == ([], "mtp", "auto")


def test_the_life_cycle_of_an_engine(user: User, root: Path) -> None:
    """Two concurrent `up`s share one engine, a killed engine is cleaned up, and `down` waits for replies."""
    resident = user.resident
    assert user.ps() == []
    words = [sys.executable, "-m", "minichat", "up", "--no-screen", "--dry-run"]
    both = [subprocess.Popen(words, cwd=root, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert resident.log.read_text().count("serving") == 1
    [line] = user.ps()
    assert (line["name"], line["state"], line["model"], line["running"]) == ("main", "ready", "pocket", 0)
    assert line["socket"] == str(resident.socket)
    assert resident.socket.stat().st_mode & 0o777 == 0o600
    assert resident.folder.stat().st_mode & 0o777 == 0o700
    assert os.getsid(line["pid"]) == line["pid"]  # its own session, so it survives the terminal
    user.up()  # a second `up` changes nothing
    assert user.ps()[0]["pid"] == line["pid"]
    code, _, err = user.say("up", "--no-screen", "--model=org/other")
    assert code == 2
    assert "the engine main runs pocket" in err
    code, _, err = user.say("up", "--no-screen", "--dry-run", "--quantization=int8", "--max-context=64")
    assert code == 2
    assert "the engine main runs without --max-context=64; stop it with minichat down" in err

    assert resident.tell(signal.SIGKILL)
    assert becomes(lambda: not resident.running())
    assert resident.socket.exists()
    assert user.ps() == []
    assert not resident.socket.exists()
    Record(os.getpid(), "pocket", 0.0, "ready").write(resident.file)
    assert not resident.tell(signal.SIGTERM)  # the pid may belong to another process by now
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(resident.socket))
    user.up()
    assert user.ps()[0]["state"] == "ready"

    with user.client() as client, unix_connect(str(resident.socket), "ws://localhost/ws") as endless:
        id = begin_reply(client, RATE // 4)
        begin_reply(client, RATE // 4)  # has no reader
        endless.send(json.dumps({"type": "generate", "id": "a", "prompt": "tell me", "params": ENDLESS}))
        assert '"started"' in str(endless.recv(30))
        with client.stream("GET", f"/engine/replies/{id}") as reading, ThreadPoolExecutor() as readers:
            shortened = readers.submit(end_once_no_other_is_accepted, endless, resident)
            assert user.say("down")[0] == 0
            assert not resident.running()
            assert '"finish":"length"' in reading.read().decode()
            assert '"finish":"length"' in shortened.result(LIMIT)
    assert user.ps() == []
    assert not resident.socket.exists()
    code, _, err = user.say("down")
    assert (code, err) == (1, "minichat: no engine named main is running; list engines with: minichat ps\n")


def test_a_name_without_its_option_is_explained(run: Run) -> None:
    for command in ("up", "down"):
        code, _, err = run(command, "work")
        assert (code, "unrecognized arguments: work; did you mean --name work?; see" in err) == (2, True)
        assert "--name" not in run(command, "What is a KV block?").err


def test_commands_for_an_engine_have_its_name(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Resident(user.resident.folder, "work")
    work.folder.mkdir(parents=True)
    RecordWriter(work, "pocket").ready()
    monkeypatch.setattr("minichat.commands.attach.check_terminal", lambda command: None)
    with open(work.lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as the engine holds it
        code, _, err = user.say("up", "--no-screen", "--name=work")
        says = "work is running; open it: minichat attach --name work; stop it: minichat down --name work"
        assert (code, err) == (0, f"minichat: {says}\n")
        code, _, err = user.say("up", "--no-screen", "--name=work", "--model=org/other")
        assert (code, "stop it with minichat down --name work, or" in err) == (2, True)
        code, _, err = user.say("attach")
        says = "no engine named main is running, but work is; open it with: minichat attach --name work"
        assert (code, err) == (2, f"minichat: {says}\n")
        more = Resident(user.resident.folder, "more")
        RecordWriter(more, "pocket").ready()
        with open(more.lock, "w") as second:
            fcntl.flock(second, fcntl.LOCK_EX)
            code, _, err = user.say("attach")
            says = "but these are: more, work; open one with: minichat attach --name NAME"
            assert (code, err) == (2, f"minichat: no engine named main is running, {says}\n")
        code, _, err = user.say("attach", "work")
        assert (code, "open it with: minichat attach --name work" in err) == (2, True)


@pytest.mark.soak
def test_a_dead_engine_is_replaced(user: User) -> None:
    resident = user.resident
    user.up()
    record = resident.record
    assert record is not None
    record.changed(state="dead", error="the device coughed").write(resident.file)
    assert user.ps()[0]["state"] == "dead"
    waiting = Waiting(resident, None)  # as for a screen that may not start an engine
    with pytest.raises(EngineError, match="main has died: the device coughed; replace it with: minichat up"):
        asyncio.run(waiting.ensure(lambda done, total: None))
    other = Waiting(Resident(resident.folder, "other"), None)
    with pytest.raises(
        EngineError, match="no engine named other is running; start it with: minichat up --name other"
    ):
        asyncio.run(other.ensure(lambda done, total: None))
    code, _, err = user.say("up", "--no-screen", "--dry-run", "--model=pocket")
    assert (code, "has died: the device coughed; starting a replacement" in err) == (0, True)
    [line] = user.ps()
    assert (line["state"], line["pid"] != record.pid) == ("ready", True)
    assert becomes(lambda: not Path(f"/proc/{record.pid}").exists())


@contextmanager
def serving(path: Path, died: list[str]) -> Iterator[None]:
    """`minichat serve` on a thread, which ends with the test, also if that fails."""
    built, make, ready = list[Server](), listen.server, threading.Event()
    options = parser().parse_args(["serve", "--no-key", f"--uds={path}"])
    log = path.with_suffix(".log")
    callbacks = serve.ServerCallbacks(lambda done, total: None, ready.set, log, died.append)
    thread = threading.Thread(target=serve.serve, args=(options, (), callbacks), daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listen, "server", lambda *args, **more: built.append(make(*args, **more)) or built[0])
        thread.start()
        assert ready.wait(LIMIT)
    try:
        yield
    finally:
        built[0].end()
        thread.join(LIMIT)
        assert not thread.is_alive()


def test_a_server_reports_the_death_of_its_engine_but_not_a_shutdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died: list[str] = []
    path = tmp_path / "s.sock"
    for breaks in (False, True):
        engine = dry()
        monkeypatch.setattr(serve, "engine", lambda *given, engine=engine: EngineThread(engine))
        with serving(path, died):
            if breaks:
                monkeypatch.setattr(engine.scheduler, "schedule", lambda: 1 / 0)
                transport = httpx.HTTPTransport(uds=str(path))
                with httpx.Client(transport=transport, base_url="http://x", timeout=LIMIT) as client:
                    assert client.post("/v1/completions", json={"prompt": "x"}).status_code >= 500
                assert becomes(lambda: died)
        assert died == (["ZeroDivisionError: division by zero"] if breaks else [])


def test_a_server_reports_an_engine_that_died_before_it_was_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, died = dry(), list[str]()
    monkeypatch.setattr(engine.scheduler, "schedule", lambda: 1 / 0)
    host = EngineThread(engine)
    assert becomes(lambda: host.snapshot().state == "dead")
    monkeypatch.setattr(serve, "engine", lambda *given: host)
    with serving(tmp_path / "s.sock", died):
        assert becomes(lambda: died)
    assert died == ["ZeroDivisionError: division by zero"]


def test_a_death_that_is_seen_and_heard_at_once_is_reported_once() -> None:
    heard, died = list[Handler](), list[str]()

    class Dead:
        state = "dead"

        @property
        def error(self) -> str:
            if not hearing.ident:
                hearing.start()
                hearing.join(0.05)
            return "broken"

    class Host:
        snapshot = Dead

        def subscribe(self, handler: Handler) -> Callable[[], None]:
            heard.append(handler)
            return heard.clear

    hearing = threading.Thread(target=lambda: heard[0](Died(0, 0.0, "broken")), daemon=True)
    watch(Host(), died.append)  # type: ignore[arg-type]
    assert becomes(lambda: hearing.ident and not hearing.is_alive() and died)
    assert died == ["broken"]


def test_a_server_prints_on_its_terminal_that_its_engine_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = parser().parse_args(["serve", "--dry-run", "--no-key", f"--uds={tmp_path / 's.sock'}"])

    def lost(*given: Any) -> int:
        given[-1].died("the engine's process was ended by SIGKILL")
        return 0

    monkeypatch.setattr(serve, "listen", lost)
    serve.serve(options, ())
    assert (
        "minichat: the engine's process was ended by SIGKILL; requests are refused" in capsys.readouterr().err
    )


@pytest.mark.parametrize(("kind", "expected"), [(BadInput, 2), (EngineError, 1)])
def test_if_the_engine_cannot_start_up_returns_the_code_of_its_error(
    user: User, monkeypatch: pytest.MonkeyPatch, kind: type[EngineError], expected: int
) -> None:
    def launch(resident: Resident, words: Sequence[str], configured: Sequence[str]) -> bool:
        resident.folder.mkdir(parents=True)
        RecordWriter(resident, "pocket").failed(kind("device 'toaster' is unknown"))
        return True

    monkeypatch.setattr(Resident, "launch", launch)
    assert user.say("up", "--no-screen") == (expected, "", "minichat: --device 'toaster' is unknown\n")


@pytest.mark.parametrize("option", ["--temperature=0", "--system=x", "--ascii", "--stop=x"])
def test_options_of_the_screen_are_refused_without_one(user: User, option: str) -> None:
    code, _, err = user.say("up", "--no-screen", option)
    assert (code, f"{option.partition('=')[0]} has no effect with --no-screen" in err) == (2, True), err


@pytest.mark.parametrize("running", [True, False])
def test_an_interrupt_says_that_the_engine_keeps_starting(
    user: User, monkeypatch: pytest.MonkeyPatch, running: bool
) -> None:
    async def interrupted(waiting: Waiting, progress: object) -> None:
        monkeypatch.setattr(Resident, "running", lambda resident: running)
        raise KeyboardInterrupt

    monkeypatch.setattr(Waiting, "ensure", interrupted)
    sentence = "minichat: work keeps starting; stop it: minichat down --name work\n" if running else ""
    assert user.say("up", "--no-screen", "--dry-run", "--name=work") == (130, "", sentence)


def test_bad_usage_is_reported_before_anything_starts(user: User) -> None:
    code, _, err = user.say("up", "--no-screen", "--rate=3")
    assert (code, err) == (2, "minichat: --rate requires --dry-run\n")
    assert not user.resident.folder.exists()


def test_why_an_engine_cannot_start(user: User, tmp_path: Path) -> None:
    code, _, err = user.say("up", "--no-screen", "--dry-run", f"--model={tmp_path}")
    assert code == 1
    assert err.startswith("minichat: ")
    assert str(tmp_path) in err and "Traceback" not in err
    assert user.ps() == []
    user.resident.folder.parent.rename(tmp_path / "aside")
    user.resident.folder.parent.touch()
    for command in (["up", "--no-screen", "--dry-run"], ["down"]):
        code, _, err = user.say(*command)
        assert code == 1
        assert "cannot use" in err
    code, _, err = user.say("up", "--no-screen", "--name=../main")
    assert code == 2
    assert "an engine name must consist of 1 to 40 letters" in err


def test_a_folder_with_a_long_path_has_its_socket_elsewhere(tmp_path: Path) -> None:
    long = Resident(tmp_path / ("x" * 90), "main")
    assert len(os.fsencode(long.socket)) <= 100
    assert long.socket != Resident(tmp_path / ("y" * 90), "main").socket


def test_a_full_disk_is_the_reason_of_an_engine_that_left_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is empty then."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    resident = Resident(tmp_path, "x")
    assert str(residents._why_ended(resident)) == f"the engine failed to start; see {resident.log}"
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    assert f"cannot use {tmp_path}: No space left on device" in str(residents._why_ended(resident))
