"""The engine in a child process behaves as on a thread; and what each process does when the other dies."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from engine.api.cache_spec import KV_SCHEMES
from engine.api.commands import Abort, MeasureSpeeds, Preempt, SetKvScheme, SetQuantization, SetSwitch, Update
from engine.api.config import EngineConfig
from engine.api.errors import (
    BadInput,
    BadParams,
    EngineDead,
    ModelNotFound,
    QueueFull,
    RequestTooLong,
    UnknownRequest,
)
from engine.api.events import Died, Event, Finished, Quantized, Quantizing, Queued, Recached, Switched
from engine.api.params import Grammar, SamplingParams
from engine.api.request import Finish
from engine.api.snapshot import Throughput
from engine.host.client import EngineClient
from engine.host.launching import describe_exit
from engine.host.process import EngineProcess
from engine.host.stream import ReplyFailed, Stream
from engine.host.thread import EngineThread
from engine.start import start
from tests.waiting import LIMIT, becomes

CONFIG = EngineConfig(
    model="pocket", device="cpu", blocks=600, threads=1, max_running=16, max_waiting=60, seed=5
)
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
HUGE = SamplingParams(max_tokens=10**6)
ENDLESS = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)
ASK = [{"role": "user", "content": "What is 2 + 3?"}]


@pytest.fixture(scope="module")
def thread() -> Iterator[EngineThread]:
    host = EngineThread(start(CONFIG))
    yield host
    host.close()


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    host = EngineProcess(CONFIG, tmp_path_factory.mktemp("state") / "engine.log")
    yield host
    host.close()


@pytest.fixture(params=["thread", "process"])
def host(request: pytest.FixtureRequest) -> EngineClient:
    return request.getfixturevalue(request.param)


def begin(host: EngineClient, params: SamplingParams = ENDLESS) -> Stream:
    stream = host.submit(ASK, params)
    next(iter(stream))
    return stream


def changed(host: EngineClient, **changes: Any) -> Future[None]:
    return host.send(Update(begin(host).id, changes))


def ended(pid: int) -> bool:
    """Return whether a process, not necessarily our child, ends in time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], LIMIT)[0])
    finally:
        os.close(handle)


class TestTheSameHost:
    def test_replies_with_a_grammar(self, host: EngineClient) -> None:
        word = Grammar("choice", '["Paris", "London"]')
        assert host.submit(ASK, GREEDY.changed(grammar=word)).result().text in ("Paris", "London")
        stream = begin(host)
        host.send(Update(stream.id, {"grammar": word})).result()
        assert stream.result().text.endswith(("Paris", "London"))
        with pytest.raises(BadParams, match=r"^grammar: invalid regex: ") as caught:
            host.submit(ASK, GREEDY.changed(grammar=Grammar("regex", "("))).result()
        assert caught.value.field == "grammar"

    def test_replies_equal_those_of_the_thread_exactly(
        self, thread: EngineThread, process: EngineProcess
    ) -> None:
        for params in (
            SamplingParams(temperature=0, max_tokens=30, logprobs=3),
            SamplingParams(
                temperature=0.9, seed=2**63 + 5, max_tokens=30, logit_bias=((65, 3.0),), stop=(".",)
            ),
        ):
            for prompt in (ASK, "One, two, three", [70, 71, 72]):
                here, there = (each.submit(prompt, params) for each in (thread, process))
                assert here.prompt_tokens == there.prompt_tokens
                ours, theirs = list(here), list(there)
                for name in ("tokens", "logprobs"):
                    assert sum((getattr(delta, name) for delta in theirs), ()) == sum(
                        (getattr(delta, name) for delta in ours), ()
                    )
                assert "".join(delta.text for delta in theirs) == "".join(delta.text for delta in ours)
                assert theirs[-1].finish is ours[-1].finish

    def test_tokenizer_calls(self, thread: EngineThread, process: EngineProcess) -> None:
        assert process.has_template
        assert process.templates == thread.templates
        assert process.pieces([70, 300, 500]) == thread.pieces([70, 300, 500])
        assert process.layout(ASK) == thread.layout(ASK)
        assert process.texts([300, 301, 302]) == thread.texts([300, 301, 302])
        assert process.snapshot().model == thread.snapshot().model == "pocket"

    def test_fifty_streams_at_once(self, process: EngineProcess) -> None:
        prompts = [[65 + n % 60, 70, 75 + n % 7] for n in range(50)]

        def whole(prompt: list[int]) -> tuple[int, ...]:
            return process.submit(prompt, GREEDY).result().tokens

        alone = {tuple(prompt): whole(prompt) for prompt in prompts[:4]}
        with ThreadPoolExecutor(50) as pool:
            replies = dict(zip(map(tuple, prompts), pool.map(whole, prompts), strict=True))
        assert all(len(reply) == 24 for reply in replies.values())
        assert all(replies[prompt] == alone[prompt] for prompt in alone)
        assert process.snapshot().running == 0

    def test_async_readers(self, process: EngineProcess) -> None:
        async def read(stream: Stream) -> tuple[int, ...]:
            return tuple([token async for delta in stream for token in delta.tokens])

        async def all_of_them() -> list[tuple[int, ...]]:
            streams = [process.submit([70, n, 72], GREEDY) for n in range(65, 71)]
            return await asyncio.gather(*map(read, streams))

        assert [len(reply) for reply in asyncio.run(all_of_them())] == [24] * 6

    def test_fork(self, host: EngineClient) -> None:
        parent = begin(host)
        child = host.fork(parent.id, SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))
        host.send(Abort((parent.id,))).result()
        result = child.result()
        assert child.id != parent.id
        assert child.prompt_tokens > parent.prompt_tokens
        assert result.finish is Finish.LENGTH
        assert child.prompt_tokens - parent.prompt_tokens + len(result.tokens) == 60

    def test_commands_on_a_running_reply(self, host: EngineClient) -> None:
        stream = begin(host)
        host.send(Preempt(stream.id)).result()
        host.send(Update(stream.id, {"temperature": 0.5, "stop": "zzz", "max_tokens": 300})).result()
        snapshot = host.snapshot()
        assert [view.max_len for view in snapshot.requests if view.id == stream.id] == [
            stream.prompt_tokens + 300
        ]
        other = begin(host)
        host.send(Abort((stream.id, other.id))).result()
        assert stream.result().finish is Finish.ABORTED
        assert other.result().finish is Finish.ABORTED
        assert host.snapshot().running == 0

    def test_events_come_in_order(self, host: EngineClient) -> None:
        events: list[Event] = []
        leave = host.subscribe(events.append)
        host.send(SetSwitch("prefix_cache", False)).result()
        host.send(SetSwitch("prefix_cache", True)).result()
        ids = [
            stream.id
            for stream in (host.submit([70, 71], GREEDY), host.submit([71, 72], GREEDY))
            if stream.result()
        ]
        host.snapshot()  # events before this answer have arrived with it
        leave()
        kinds = [(type(event), getattr(event, "request", None)) for event in events]
        assert [kind for kind, _ in kinds[:2]] == [Switched, Switched]
        for id in ids:
            assert kinds.index((Queued, id)) < kinds.index((Finished, id))
        host.submit([70], GREEDY).result()
        host.snapshot()
        assert len(events) == len(kinds)

    def test_other_schemes_of_cache_and_weights(self, host: EngineClient) -> None:
        before, events = host.submit([70, 71, 72], GREEDY).result().tokens, list[Event]()
        leave = host.subscribe(events.append)
        assert [view.name for view in host.snapshot().kv_schemes] == list(KV_SCHEMES)
        host.send(SetKvScheme("int8")).result()
        assert (host.snapshot().kv_scheme, host.snapshot().kv_dtype) == ("int8", "int8")
        stream = begin(host)
        with pytest.raises(BadInput, match="while requests are alive: wait for 1, or end them"):
            host.send(SetKvScheme("none")).result()
        changing = host.send(SetQuantization("int4"))  # this change need not wait
        refused = host.send(SetKvScheme("none"))  # right behind it, before the change can end
        changing.result()
        with pytest.raises(BadInput, match="weights are changing to int4; wait, or cancel"):
            refused.result()
        self.wait_for(host, "int4")
        host.send(Abort((stream.id,))).result()
        host.send(SetKvScheme("none")).result()
        host.send(SetQuantization("none")).result()
        self.wait_for(host, "none")
        leave()
        kinds = [type(event) for event in events if isinstance(event, Recached | Quantized | Quantizing)]
        assert kinds[0] is Recached and kinds[-1] is Quantized and kinds.count(Quantizing) > 8
        assert [event.scheme for event in events if isinstance(event, Recached)] == ["int8", "none"]
        assert host.submit([70, 71, 72], GREEDY).result().tokens == before

    def wait_for(self, host: EngineClient, scheme: str) -> None:
        def changed() -> bool:
            shot = host.snapshot()
            return shot.quantization == scheme and shot.change is None

        assert becomes(changed)

    def test_speeds(self, process: EngineProcess) -> None:
        assert process.send(MeasureSpeeds()).result().read > 1e6

    @pytest.mark.parametrize(
        ("kind", "words", "ask"),
        [
            (RequestTooLong, "lower max_tokens", lambda host: host.submit([70], HUGE)),
            (BadParams, "prompt: token id 999999 is out", lambda host: host.submit([999_999], GREEDY)),
            (BadInput, "got 'x'", lambda host: host.submit([70, "x"], GREEDY)),
            (BadInput, "priority must be a whole", lambda host: host.submit([70], GREEDY, priority="first")),
            (BadInput, "", lambda host: host.submit([70], GREEDY, deadline=float("nan"))),
            (BadInput, "", lambda host: host.submit([70], GREEDY, priority=object())),
            (BadInput, "unknown switch 'warp'", lambda it: it.send(SetSwitch("warp", True))),
            (BadInput, "KV scheme 'int3'; available: none, int8", lambda it: it.send(SetKvScheme("int3"))),
            (BadInput, "'fp8': FP8 products need an NVIDIA GPU", lambda it: it.send(SetQuantization("fp8"))),
            (UnknownRequest, "no request 12345 is alive", lambda host: host.fork(12345)),
            (UnknownRequest, "no request 12345 is alive", lambda it: it.send(Update(12345, {"top_k": 1}))),
            (UnknownRequest, "no request 12345 is alive", lambda it: it.send(Preempt(12345))),
            (BadParams, "heat: is not a sampling parameter", lambda host: changed(host, heat=1)),
            (BadParams, "top_p: must be a number", lambda host: changed(host, top_p=7)),
        ],
    )  # fmt: skip
    def test_errors_keep_their_class(
        self, host: EngineClient, kind: type[Exception], words: str, ask: Any
    ) -> None:
        with pytest.raises(kind) as caught:
            ask(host).result()
        assert type(caught.value) is kind
        assert words in str(caught.value)
        host.send(Abort(tuple([view.id for view in host.snapshot().requests]))).result()
        short = GREEDY.changed(max_tokens=2)
        assert host.submit([70, 71], short).result().finish is Finish.LENGTH  # the engine still works

    def test_a_full_queue(self, process: EngineProcess) -> None:
        big = SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True)
        streams: list[Stream] = []

        def fill() -> None:
            while len(streams) < 200:
                stream = process.submit([65 + len(streams) % 60], big)
                stream.accepted.result()
                streams.append(stream)

        with pytest.raises(QueueFull, match="60 requests are waiting"):
            fill()
        assert len(streams) >= 16 + 60
        process.send(Abort(tuple([stream.id for stream in streams]))).result()
        assert {stream.result().finish for stream in streams} == {Finish.ABORTED}

    def test_a_handler_cannot_send_a_command(self, process: EngineProcess) -> None:
        errors: list[str] = []

        def handler(event: Event) -> None:
            try:
                process.snapshot()
            except RuntimeError as error:
                errors.append(str(error))

        leave = process.subscribe(handler)
        process.submit([70], GREEDY).result()
        process.snapshot()
        leave()
        assert errors and "cannot take a snapshot" in errors[0]

    def test_the_process_is_detached_from_the_terminal(self, process: EngineProcess) -> None:
        fds = {n: os.readlink(f"/proc/{process.pid}/fd/{n}") for n in range(3)}
        assert fds[0] == "/dev/null"
        assert fds[1] == fds[2]
        assert fds[1].endswith("engine.log")
        assert os.getsid(process.pid) == process.pid  # no Ctrl+C, no hangup


class TestWhenTheChildDies:
    def test_every_caller_gets_the_reason(self, tmp_path: Path) -> None:
        log = tmp_path / "engine.log"
        host = EngineProcess(CONFIG, log, dry_rate=20.0)
        events: list[Event] = []
        host.subscribe(events.append)
        streams = [begin(host) for _ in range(4)]
        os.kill(host.pid, signal.SIGSTOP)  # it will not answer any more
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(lambda: host.submit([70], GREEDY).result()) for _ in range(8)]
            os.kill(host.pid, signal.SIGKILL)
            errors = [each.exception() for each in asked]
        reason = f"the engine's process was killed by SIGKILL (possibly out of memory); its log is {log}"
        assert {(type(error), str(error)) for error in errors} == {(EngineDead, reason)}
        for stream in streams:
            with pytest.raises(ReplyFailed) as caught:
                stream.result()
            assert str(caught.value) == reason
        snapshot = host.snapshot()
        assert (snapshot.state, snapshot.error, snapshot.requests) == ("dead", reason, ())
        assert snapshot.blocks.in_use == 0 and not snapshot.blocks.refs.any()
        assert snapshot.rates == Throughput()
        for ask in (
            lambda: host.submit([70], GREEDY),
            lambda: host.send(Abort((0,))),
            lambda: host.send(MeasureSpeeds()),
        ):
            with pytest.raises(EngineDead, match="killed by SIGKILL"):
                ask().result()
        host.close()
        assert [event.error for event in events if isinstance(event, Died)] == [reason]

    @pytest.mark.parametrize(
        ("code", "words"),
        [
            (-signal.SIGSEGV, "was killed by SIGSEGV"),
            (-signal.SIGTERM, "was killed by SIGTERM"),
            (-60, "was killed by signal 60"),
            (70, "ended with exit code 70"),
            (None, "stopped responding and was killed"),
        ],
    )
    def test_the_reason_for_each_exit_code(self, code: int | None, words: str) -> None:
        assert describe_exit(code) == words

    def test_a_model_that_cannot_be_loaded(self, tmp_path: Path) -> None:
        before = set(threading.enumerate())
        with pytest.raises(ModelNotFound, match="nowhere"):
            EngineProcess(EngineConfig(model=str(tmp_path / "nowhere")), tmp_path / "engine.log")
        assert set(threading.enumerate()) <= before, "others may end meanwhile"
        assert "Traceback" in (tmp_path / "engine.log").read_text()

    def test_close(self, tmp_path: Path) -> None:
        host = EngineProcess(CONFIG, tmp_path / "engine.log", dry_rate=20.0)
        stream = begin(host)
        host.close()
        with pytest.raises(ReplyFailed, match=r"^the engine was closed$"):
            stream.result()
        assert ended(host.pid)
        for ask in (lambda: host.submit([70], GREEDY).result(), host.snapshot):
            with pytest.raises(EngineDead, match="the engine was closed"):
                ask()
        host.close()


_PARENT = """
import sys, threading
from pathlib import Path
from engine.api.config import EngineConfig
from engine.host.process import EngineProcess
from engine.api.params import SamplingParams
from tests.waiting import LIMIT, becomes
host = EngineProcess(EngineConfig(model="pocket", device="cpu", threads=1), Path(sys.argv[1]))
stream = host.submit([70, 71], SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True))
next(iter(stream))
assert "torch" not in sys.modules
print(host.pid, flush=True)
threading.Event().wait()
"""


class TestWhenTheParentDies:
    def test_kill_9(self, tmp_path: Path) -> None:
        command = [sys.executable, "-c", _PARENT, str(tmp_path / "engine.log")]
        parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        assert ended(child)
        parent.stdout.close()
