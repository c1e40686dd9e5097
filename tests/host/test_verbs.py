"""A command from outside the tree: one class and one handler, and it works on every path to an engine."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx
import pytest

from engine.api import wire
from engine.api.commands import Abort, Command, Sender, Submit, decode_result, encode_command
from engine.api.config import EngineConfig
from engine.api.errors import BadInput, EngineDead, EngineError, UnknownCommand
from engine.host.child_engine import CommandServer
from engine.host.frames import FrameSocket
from engine.host.outbox import Outbox
from engine.host.thread import EngineThread
from engine.serving.engine import Engine
from engine.serving.handlers import HANDLERS, Handler
from minichat.clients.fake import FakeBackend
from minichat.clients.local import LocalBackend
from tests.attach.conftest import attached
from tests.engine.ledger import ledger_engine
from tests.host.conftest import Open
from tests.host.roomy import params, roomy_engine, runner_of
from tests.server.conftest import Served, dry, serving


class RequestCount(NamedTuple):
    requests: int
    note: str


@dataclass(frozen=True, slots=True)
class CountHeld(Command[RequestCount]):
    """Return the number of requests an engine holds."""

    note: str = "all"
    sender = Sender.KEY


@dataclass(frozen=True, slots=True)
class Dump(Command[None]):
    """A command for the engine's own process only."""


@dataclass(frozen=True, slots=True)
class Forgotten(Command[None]):
    """A command without a handler."""


def count(engine: Engine, asked: CountHeld) -> RequestCount:
    if asked.note == "none":
        raise BadInput("note may not be none", field="note", value=asked.note)
    return RequestCount(len(engine.scheduler.requests), asked.note)


@pytest.fixture(autouse=True)
def register_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HANDLERS, CountHeld, Handler(count))
    monkeypatch.setitem(HANDLERS, Dump, Handler(lambda engine, asked: None))


def refused_by_name(error: BaseException | None) -> bool:
    assert isinstance(error, BadInput)
    return (type(error), str(error), error.field, error.value) == (
        BadInput, "note may not be none", "note", "none"
    )  # fmt: skip


def test_on_a_thread(opened: Open) -> None:
    host = opened(ledger_engine())
    assert host.send(CountHeld("so")).result(20) == RequestCount(0, "so")
    assert host.send(Dump()).result(20) is None
    assert refused_by_name(host.send(CountHeld("none")).exception(20))


def test_beside_the_steps(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine continues its steps, and the check before a command may refuse it."""
    hold = threading.Event()

    def slow(engine: Engine, asked: CountHeld) -> RequestCount:
        assert hold.wait(20)
        return count(engine, asked)

    def refuse() -> None:
        raise BadInput("not now")

    host = opened(roomy_engine())
    monkeypatch.setitem(HANDLERS, CountHeld, Handler(slow, concurrent=True))
    monkeypatch.setitem(HANDLERS, Dump, Handler(lambda engine, asked: None, first=lambda e, c: refuse))
    answers = [host.send(CountHeld()) for _ in range(20)]  # more than there are threads for them
    assert len(host.submit([1], params(50)).result().tokens) == 50
    assert not any(answer.done() for answer in answers)
    hold.set()
    assert {answer.result(20) for answer in answers} == {RequestCount(0, "all")}
    with pytest.raises(BadInput, match="not now"):
        host.send(Dump()).result(20)
    assert host.snapshot().state == "ready"
    host.close()
    for command in (CountHeld(), Dump(), Abort((0,))):
        with pytest.raises(EngineDead, match="has been closed"):
            host.send(command).result(20)


def test_a_verb_without_a_handler_is_refused(opened: Open) -> None:
    with pytest.raises(UnknownCommand, match="this engine has no handler for forgotten"):
        opened(ledger_engine()).send(Forgotten()).result(20)


class Parent:
    """The other end of a child's socket, in the same process."""

    def __init__(self, host: EngineThread) -> None:
        ours, theirs = socket.socketpair()
        self.frames, self._theirs = FrameSocket(ours), FrameSocket(theirs)
        self._outbox = Outbox(self._theirs, lost=lambda: None)
        self._server = CommandServer(host, ledger_engine().tokenizer, self._outbox)

    def take(self, command: Any) -> None:
        self._server.take(json.loads(json.dumps({"ask": 7, "command": command})))

    def answer(self, command: Any) -> dict[str, Any]:
        self.take(command)
        [answer] = next(iter(self.frames))["answers"]
        assert answer["to"] == 7
        return dict(answer)

    def close(self) -> None:
        self._outbox.close()
        self.frames.close()
        self._theirs.close()


@pytest.fixture
def parent(opened: Open) -> Iterator[Parent]:
    one = Parent(opened(ledger_engine()))
    yield one
    one.close()


def test_into_a_process(parent: Parent) -> None:
    answer = parent.answer(encode_command(CountHeld("so")))
    assert decode_result(CountHeld, answer["is"]) == RequestCount(0, "so")
    assert refused_by_name(wire.decode_error(parent.answer(encode_command(CountHeld("none")))["error"]))


def test_an_answer_is_sent_before_the_tokens_that_follow_it() -> None:
    """Also if the thread that sends the command gets the processor again only when there are some."""
    frames = list[dict[str, Any]]()

    class Slow(EngineThread):
        def send(self, *command: Any) -> Future[Any]:
            answer = super().send(*command)
            frames.append(next(iter(parent.frames)))
            return answer

    host = Slow(ledger_engine())
    parent = Parent(host)
    parent.take(encode_command(Submit((1, 2), params(3))))
    assert "answers" in frames[0]
    parent.close()
    host.close()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (encode_command(Dump()), "there is no command 'dump'"),
        ({"v": 1, "command": "count_held", "with": {"note": 5}}, "note must be a string, not 5"),
        ({"v": 1, "command": 5}, "must name a command, not 5"),
        ({"v": 2, "command": "count_held", "with": {}}, "protocol version 2"),
        (5, "command: must be an object, not 5"),
    ],
)
def test_what_a_process_refuses(parent: Parent, command: Any, words: str) -> None:
    assert words in str(wire.decode_error(parent.answer(command)["error"]))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(dry()) as one:
        yield one


def test_over_http(served: Served) -> None:
    with served.client() as client:
        answer = client.post("/engine/commands/count_held", json={"note": "so"})
        assert answer.json() == {"v": 1, "result": {"requests": 0, "note": "so"}}
        assert client.post("/engine/commands/count_held", json={}).json()["result"]["note"] == "all"
        refusal = client.post("/engine/commands/count_held", json={"note": "none"})
        assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "note")
        assert refused_by_name(wire.decode_error(refusal.json()["engine"]))


@pytest.mark.parametrize("verb", ["dump", "submit", "fork", "warm", "dance", "__init__"])
def test_a_command_not_for_keys_is_not_found(served: Served, verb: str) -> None:
    with served.client() as client:
        answer = client.post(f"/engine/commands/{verb}", json={})
        assert answer.status_code == 404
        error = wire.decode_error(answer.json()["engine"])
        assert (type(error), str(error)) == (UnknownCommand, f"there is no command {verb!r}")
        assert client.get(f"/engine/commands/{verb}").status_code == 405


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[]", 400),
        (b"{", 400),
        (b"[" * 5000, 400),
        (b'{"note": 1}', 400),
        (b'{"note": "so", "more": 1}', 400),
        (b'{"note": NaN}', 400),
        (b'{"note": "' + b"x" * (9 * 2**20) + b'"}', 413),
    ],
    ids=range(7),
)
def test_malformed_bodies_over_http_get_an_error(served: Served, body: bytes, status: int) -> None:
    with served.client() as client:
        headers = {"content-type": "application/json"}
        answer = client.post("/engine/commands/count_held", content=body, headers=headers)
        assert answer.status_code == status
        assert str(wire.decode_error(answer.json()["engine"])) == answer.json()["error"]["message"] != ""


def test_commands_need_a_key(served: Served) -> None:
    answer = httpx.post(f"{served.url}/engine/commands/count_held", json={})
    assert answer.status_code == 401


def test_from_every_backend_of_the_screen(served: Served) -> None:
    async def ask() -> list[RequestCount]:
        local = LocalBackend(EngineConfig(model="pocket"), lambda config, progress: served.host)
        await local.load(lambda done, total: None)
        fake = FakeBackend([])
        fake.handlers[CountHeld] = lambda asked: RequestCount(0, asked.note)
        async with attached(served) as elsewhere:
            backends = (local, fake, elsewhere.backend)
            for backend in (local, elsewhere.backend):
                with pytest.raises(EngineError) as caught:
                    await backend.send(CountHeld("none"))
                assert refused_by_name(caught.value)
            return [await backend.send(CountHeld("so")) for backend in backends]

    assert asyncio.run(ask()) == [RequestCount(0, "so")] * 3


class TestStreams:
    def test_a_refusal_is_the_only_item(self, opened: Open) -> None:
        host = opened(ledger_engine(context=64))
        for prompt, words in (
            ([], "prompt is empty"),
            ([1] * 64, "64 tokens; this model takes 63"),
            ([1, "x"], "got 'x'"),
        ):
            stream = host.submit(prompt, params())  # type: ignore[arg-type]
            [delta] = stream
            assert words in delta.error and delta.last
            with pytest.raises(BadInput, match=words):
                stream.result()
            with pytest.raises(BadInput, match=words):
                _ = stream.id

    def test_commands_do_not_wait_for_a_step(self, opened: Open) -> None:
        """Commands sent in the middle of a long step are accepted, and answered after it."""
        engine, hold, inside = roomy_engine(), threading.Event(), threading.Event()
        host = opened(engine)

        def blocked_step(plan: Any) -> bool:
            inside.set()
            assert hold.wait(20)
            return False

        runner_of(engine).fails = blocked_step
        first = host.submit([1], params(3))
        assert inside.wait(20)
        rest = [host.submit([n], params(3)) for n in range(50)]
        answers: list[Future[RequestCount]] = [host.send(CountHeld()) for _ in range(50)]
        assert not any(stream.accepted.done() for stream in rest)
        assert not any(answer.done() for answer in answers)
        hold.set()
        assert [answer.result(20).requests for answer in answers] == [51] * 50
        assert len({stream.id for stream in [first, *rest]}) == 51
        assert all(len(stream.result().tokens) == 3 for stream in [first, *rest])
