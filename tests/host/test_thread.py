"""The engine on its thread, driven from others. On the ledger, whose steps take no time."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import FrozenInstanceError
from itertools import islice
from typing import Any

import numpy as np
import pytest

from engine import events
from engine.core import Engine
from engine.errors import BadInput, BadParams, EngineDead, QueueFull, RequestTooLong, UnknownRequest
from engine.host.stream import ReplyFailed, Stream
from engine.host.thread import EngineThread
from engine.params import SamplingParams
from engine.request import Finish
from engine.scheduling.plan import Plan
from engine.snapshot import Snapshot
from tests.engine.ledger import VOCAB, LedgerRunner, alone, ledger_engine
from tests.host.conftest import Open

DEPTHS = pytest.mark.parametrize("depth", [0, 1])


def params(count: int = 20, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=count, seed=0, **more)


def roomy(depth: int = 0, **how: Any) -> Engine:
    return ledger_engine(**{"blocks": 4096, "context": 60_000, "depth": depth} | how)


def endless(host: EngineThread, first: int = 0) -> Stream:
    """A request that runs for as long as a test looks, and has begun."""
    stream = host.submit([first, 1, 2], params(50_000))
    next(iter(stream))
    return stream


def runner_of(engine: Engine) -> LedgerRunner:
    assert isinstance(engine.runner, LedgerRunner)
    return engine.runner


class TestReplies:
    @DEPTHS
    def test_two_hundred_requests_from_eight_threads(self, opened: Open, depth: int) -> None:
        host = opened(ledger_engine(blocks=24, host=8, depth=depth, step_tokens=32))

        def some(thread: int) -> None:
            for n in range(25):
                prompt = [thread, n, *range(n)]
                stream = host.submit(prompt, params(1 + n))
                if n % 5 == 4:
                    host.abort(stream.id)
                    result = stream.result()
                    assert result.finish in (Finish.ABORTED, Finish.LENGTH)
                    assert list(result.tokens) == alone(prompt, 1 + n)[: len(result.tokens)]
                else:
                    if n % 7 == 3:
                        with suppress(UnknownRequest):  # where it has ended already
                            host.preempt(stream.id)
                    assert list(stream.result().tokens) == alone(prompt, 1 + n)

        with ThreadPoolExecutor(8) as pool:
            for each in [pool.submit(some, n) for n in range(8)]:
                each.result(25)
        assert host.snapshot().blocks.in_use == 0
        assert host.snapshot().finished == 200

    def test_a_stream_is_read_as_it_comes(self, opened: Open) -> None:
        deltas = list(opened(ledger_engine()).submit([1, 2], params(5)))
        assert [token for delta in deltas for token in delta.tokens] == alone([1, 2], 5)
        assert [delta.finish for delta in deltas] == [None] * 4 + [Finish.LENGTH]

    def test_what_has_been_read_is_not_waited_for_again(self, opened: Open) -> None:
        stream = opened(ledger_engine()).submit([1, 2], params(5))
        first = next(iter(stream))
        rest = stream.result()
        assert (*first.tokens, *rest.tokens) == tuple(alone([1, 2], 5))
        assert list(stream) == []
        assert (stream.result().tokens, stream.result().finish) == ((), Finish.LENGTH)

    def test_many_streams_in_one_event_loop(self, opened: Open) -> None:
        host = opened(ledger_engine(blocks=24))

        async def read(n: int) -> list[int]:
            return [token async for delta in host.submit([n], params(30)) for token in delta.tokens]

        async def all_of_them() -> list[list[int]]:
            return await asyncio.wait_for(asyncio.gather(*map(read, range(20))), 20)

        assert asyncio.run(all_of_them()) == [alone([n], 30) for n in range(20)]

    def test_an_async_reader_may_leave_and_come_back(self, opened: Open) -> None:
        host = opened(roomy())

        async def twice() -> list[int]:
            stream = host.submit([1], params(4000))
            tokens: list[int] = []
            for _ in range(10):
                async for delta in stream:
                    tokens += delta.tokens
                    if len(tokens) % 100 == 0:
                        break
            async for delta in stream:
                tokens += delta.tokens
            return tokens

        assert len(asyncio.run(asyncio.wait_for(twice(), 25))) == 4000

    def test_a_reader_whose_loop_is_gone_harms_nobody(self, opened: Open) -> None:
        host = opened(roomy())
        stream = host.submit([1], params(50_000))
        loop = asyncio.new_event_loop()
        reading = aiter(stream)
        loop.run_until_complete(anext(reading))
        loop.close()
        assert host.submit([2], params(50)).result().finish is Finish.LENGTH
        assert host.snapshot().state == "ready"
        host.abort(stream.id)


class TestCommands:
    def test_what_is_wrong_with_a_request_is_said_to_who_asked(self, opened: Open) -> None:
        host = opened(ledger_engine(context=64))
        with pytest.raises(BadInput, match="prompt is empty"):
            host.submit([], params())
        with pytest.raises(RequestTooLong, match=r"64 tokens.*holds 64 here.*shorten it to 63"):
            host.submit([1] * 64, params())
        with pytest.raises(RequestTooLong, match=r"60 tokens and asks for 20 more.*lower max_tokens to 4"):
            host.submit([1] * 60, params())
        for bad in (VOCAB, -1):
            with pytest.raises(BadInput, match=rf"token id {bad} is out of range: .* 0 to {VOCAB - 1}"):
                host.submit([1, bad], params())
        with pytest.raises(BadInput, match=f"token id {VOCAB} is out of range"):
            host.submit([1], params(logit_bias={VOCAB: 1.0}))
        with pytest.raises(BadInput, match=r"holds 1\.5, which is none"):
            host.submit([1, 1.5], params())  # type: ignore[list-item]
        for bad_prompt in (7, b"text"):
            with pytest.raises(BadInput, match=f"not {type(bad_prompt).__name__}"):
                host.submit(bad_prompt, params())  # type: ignore[arg-type]
        assert host.snapshot().running == host.snapshot().waiting == 0

    def test_who_does_not_exist_is_named(self, opened: Open) -> None:
        host = opened(ledger_engine())
        for command in (host.preempt, host.fork, lambda id: host.update(id, top_k=1)):
            with pytest.raises(UnknownRequest, match="no request 17 is alive"):
                command(17)
        host.abort(17)  # that it has ended is all one wants

    def test_a_bad_change_changes_nothing(self, opened: Open) -> None:
        host = opened(roomy())
        stream = endless(host)
        for bad in ({"temperature": -1}, {"warmth": 1}, {"max_tokens": 0}, {"top_p": 10**400}):
            with pytest.raises(BadParams, match=next(iter(bad))):
                host.update(stream.id, **bad)
        with pytest.raises(RequestTooLong, match="lower max_tokens to 59997"):
            host.update(stream.id, max_tokens=60_000)
        host.abort(stream.id)
        result = stream.result()
        assert list(result.tokens) == alone([0, 1, 2], 1 + len(result.tokens))[1:]

    @DEPTHS
    def test_an_abort_ends_the_stream_and_frees_the_blocks(self, opened: Open, depth: int) -> None:
        engine = roomy(depth)
        host = opened(engine)
        stream = endless(host)
        host.abort(stream.id)
        shot = host.snapshot()  # taken before another step
        assert (shot.running, shot.blocks.in_use) == (0, 0)
        assert stream.result().finish is Finish.ABORTED
        host.abort(stream.id)

    @DEPTHS
    def test_all_commands_from_many_threads_at_once(self, opened: Open, depth: int) -> None:
        engine = roomy(depth, host=64)
        host = opened(engine)

        def work(n: int) -> None:
            stream = host.submit([n], params(400))
            host.preempt(stream.id)
            host.update(stream.id, top_k=n + 1)
            branch = host.fork(stream.id)
            assert host.snapshot().state == "ready"
            whole = alone([n], 400)
            assert list(stream.result().tokens) == whole
            rest = list(branch.result().tokens)
            assert rest == whole[400 - len(rest) :]

        with ThreadPoolExecutor(6) as pool:
            for each in [pool.submit(work, n) for n in range(12)]:
                each.result(25)
        engine.scheduler.check()

    def test_a_full_line_is_said(self, opened: Open) -> None:
        engine = roomy(slots=1)
        engine.limits = type(engine.limits)(60_000, VOCAB, waiting=2)
        host = opened(engine)
        running = endless(host)
        waiting = [host.submit([n], params(2)) for n in range(2)]
        with pytest.raises(QueueFull, match="2 requests wait already"):
            host.submit([9], params(2))
        host.abort(running.id)
        assert [stream.result().finish for stream in waiting] == [Finish.LENGTH] * 2


class TestWhenThingsBreak:
    @DEPTHS
    def test_a_failing_step_fails_who_was_in_it(self, opened: Open, depth: int) -> None:
        engine = roomy(depth)
        host = opened(engine)
        broken: list[events.Event] = []
        host.subscribe(lambda event: broken.append(event) if event.kind == "stepbroke" else None)
        streams = [endless(host, n) for n in range(2)]

        def once(plan: Plan) -> bool:
            runner_of(engine).fails = lambda plan: False
            return True

        runner_of(engine).fails = once
        for stream in streams:
            with pytest.raises(ReplyFailed, match="the step failed: RuntimeError: told to fail"):
                stream.result()
        assert len(broken) == 1
        assert list(host.submit([5], params(30)).result().tokens) == alone([5], 30)
        shot = host.snapshot()
        assert (shot.state, shot.blocks.in_use) == ("ready", 0)

    @pytest.mark.parametrize("where", ["plan", "commit", "_preempt", "_stop_running"])
    @DEPTHS
    def test_an_error_in_the_scheduler_ends_everything_with_the_reason(
        self, opened: Open, monkeypatch: pytest.MonkeyPatch, where: str, depth: int
    ) -> None:
        """Wherever it strikes: half-way through a preemption a request is in no line at all."""
        engine = roomy(depth)
        host = opened(engine)
        died: list[events.Event] = []
        host.subscribe(lambda event: died.append(event) if event.kind == "died" else None)
        real = getattr(engine.scheduler, where)

        def breaks(*args: Any) -> Any:
            real(*args)
            raise ZeroDivisionError("scheduler broke")

        monkeypatch.setattr(engine.scheduler, where, breaks)
        with ThreadPoolExecutor(3) as pool:
            ends = [pool.submit(self._end_of, host, n) for n in range(3)]
            assert all("ZeroDivisionError: scheduler broke" in each.result(20) for each in ends)
        shot = host.snapshot()
        assert (shot.state, shot.error) == ("dead", "ZeroDivisionError: scheduler broke")
        assert (shot.running, shot.waiting, shot.blocks.in_use, len(died)) == (0, 0, 0, 1)
        for command in (lambda: host.submit([1], params()), lambda: host.fork(0)):
            with pytest.raises(EngineDead, match="stopped: ZeroDivisionError: scheduler broke"):
                command()
        with pytest.raises(UnknownRequest):
            host.update(0, top_k=3)
        host.abort(0)

    @staticmethod
    def _end_of(host: EngineThread, n: int) -> str:
        try:
            stream = host.submit([n], params(50_000))
            with suppress(UnknownRequest):  # dead already, as the stream will say
                host.preempt(stream.id)
            return stream.result().finish.value
        except (ReplyFailed, EngineDead) as error:
            return str(error)

    def test_an_error_in_the_text_of_a_reply_hangs_nobody(
        self, opened: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = roomy()
        host = opened(engine)
        streams = [endless(host, n) for n in range(2)]

        def breaks(token: int = 0) -> str:
            raise ZeroDivisionError("text broke")

        monkeypatch.setattr(engine.tokenizer, "push", breaks, raising=True)
        monkeypatch.setattr(engine.tokenizer, "flush", breaks, raising=True)
        for stream in streams:
            with pytest.raises(ReplyFailed, match="text broke"):
                stream.result()
        assert host.snapshot().state == "dead"

    def test_a_lost_device_is_the_end(self, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = roomy()
        host = opened(engine)
        monkeypatch.setattr(engine.runner, "ailing", lambda: "the GPU is gone")
        stream = endless(host)
        runner_of(engine).fails = lambda plan: True
        with pytest.raises(ReplyFailed, match="told to fail"):
            stream.result()
        with pytest.raises(EngineDead, match="the GPU is gone"):
            host.submit([1], params())

    def test_a_subscriber_that_raises_is_dropped(
        self, opened: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        host = opened(ledger_engine())
        heard: list[str] = []
        called = 0

        def clumsy(event: events.Event) -> None:
            nonlocal called
            called += 1
            raise ValueError("clumsy")

        host.subscribe(clumsy)
        stop = host.subscribe(lambda event: heard.append(event.kind))
        host.submit([1], params(2)).result()
        assert called == 1
        assert "a subscriber failed on queued and is dropped" in caplog.text
        assert heard == ["queued", "admitted", "firsttoken", "finished"]
        stop()
        host.submit([1], params(2)).result()
        assert len(heard) == 4

    def test_subscribers_from_many_threads_are_all_kept(self, opened: Open) -> None:
        host = opened(ledger_engine())
        heard: list[int] = []
        start = threading.Barrier(8)

        def subscribe(thread: int) -> list[Callable[[], None]]:
            start.wait(10)
            return [
                host.subscribe(lambda event, n=n: heard.append(n) if event.kind == "queued" else None)
                for n in range(thread * 100, thread * 100 + 100)
            ]

        with ThreadPoolExecutor(8) as pool:
            stops = [stop for stops in pool.map(subscribe, range(8)) for stop in stops]
        host.submit([1], params(1)).result()
        assert sorted(heard) == list(range(800))
        for stop in stops:
            stop()
        host.submit([1], params(1)).result()
        assert len(heard) == 800


class TestClosing:
    @DEPTHS
    def test_it_ends_what_runs_and_what_waits(self, depth: int) -> None:
        engine = roomy(depth, slots=2)
        host = EngineThread(engine)
        streams = [endless(host, n) for n in range(2)] + [host.submit([7], params(9))]
        host.close()
        for stream in streams:
            with pytest.raises(ReplyFailed, match="the engine was closed"):
                stream.result()
        engine.scheduler.check()
        assert engine.scheduler.pool.in_use == 0
        commands = (lambda: host.submit([1], params()), host.snapshot, lambda: host.abort(0))
        for command in commands:
            with pytest.raises(EngineDead, match="has been closed"):
                command()
        host.close()

    def test_whoever_asks_while_it_closes_gets_an_answer(self) -> None:
        for _ in range(10):
            host = EngineThread(ledger_engine())
            start, ends = threading.Barrier(5), []

            def work(host: EngineThread = host, start: threading.Barrier = start, ends: Any = ends) -> None:
                start.wait(10)
                try:
                    while True:
                        host.submit([1], params(3)).result()
                except (EngineDead, ReplyFailed) as error:
                    ends.append(str(error))

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            start.wait(10)
            host.close()
            for thread in threads:
                thread.join(10)
            assert len(ends) == 4
            assert all("closed" in end for end in ends)


class TestSnapshots:
    def test_it_is_immutable_and_adds_up(self, opened: Open) -> None:
        host = opened(roomy(depth=1))
        streams = [endless(host, n) for n in range(3)]
        host.fork(streams[0].id)
        for _ in range(20):
            self._adds_up(host.snapshot())
        shot = host.snapshot()
        assert (shot.running, shot.waiting, shot.state) == (4, 0, "ready")
        with pytest.raises(FrozenInstanceError):
            shot.running = 0  # type: ignore[misc]
        for column in (shot.blocks.refs, shot.blocks.owner, shot.blocks.filled, shot.blocks.used_at):
            with pytest.raises(ValueError, match="read-only"):
                column[0] = 7
        before = (shot.step, shot.blocks.refs.copy(), shot.requests)
        next(islice(iter(streams[0]), 50, None))
        assert host.snapshot().step > shot.step
        assert (shot.step, shot.requests) == (before[0], before[2])
        assert np.array_equal(shot.blocks.refs, before[1])

    @staticmethod
    def _adds_up(shot: Snapshot) -> None:
        blocks = shot.blocks
        held = [block for request in shot.requests for block in request.blocks]
        assert blocks.in_use == len(set(held)) == int((blocks.refs > 0).sum())
        assert np.array_equal(np.bincount(held, minlength=blocks.size), blocks.refs)
        free = int((blocks.owner < 0).sum())
        assert free + blocks.cached + blocks.in_use == blocks.size
        for request in shot.requests:
            assert sum(blocks.filled[list(request.blocks)]) == request.launched
            assert request.launched in (request.prompt + request.generated + lag for lag in (-1, 0))

    def test_of_a_hundred_thousand_blocks(self, opened: Open) -> None:
        host = opened(ledger_engine(blocks=100_000, slots=2, context=512))
        host.submit([1] * 100, params(50)).result()
        shot = host.snapshot()
        assert (shot.blocks.size, shot.blocks.in_use, shot.blocks.cached) == (100_000, 0, 9)
        assert shot.blocks.owner.shape == (100_000,)

    def test_why_one_waits_and_how_it_went(self, opened: Open) -> None:
        host = opened(roomy(slots=1))
        running = endless(host)
        waiting = host.submit([1], params(1))
        first, second = host.snapshot().requests
        assert (first.id, first.phase) == (running.id, "decode")
        assert (second.id, second.phase, second.why) == (waiting.id, "waiting", "waits its turn")
        host.abort(running.id)
        waiting.result()
        shot = host.snapshot()
        assert (shot.finished, shot.ttft.count) == (2, 2)
