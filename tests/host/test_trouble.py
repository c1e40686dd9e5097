"""The engine on its thread when something breaks or closes: every caller gets the reason, and none hangs."""

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from engine.api import events
from engine.api.commands import Abort, Preempt, Update
from engine.api.errors import EngineDead, UnknownRequest
from engine.host.stream import ReplyFailed
from engine.host.thread import EngineThread
from engine.scheduling.step import Step
from tests.engine.ledger import alone, ledger_engine
from tests.host.conftest import Open
from tests.host.roomy import DEPTHS, endless, params, roomy_engine, runner_of


class TestErrors:
    @DEPTHS
    def test_a_failing_step_fails_its_requests(self, opened: Open, depth: int) -> None:
        engine = roomy_engine(depth)
        host = opened(engine)
        broken: list[events.Event] = []
        host.subscribe(lambda event: broken.append(event) if event.kind == "stepbroke" else None)
        streams = [endless(host, n) for n in range(2)]

        def once(step: Step) -> bool:
            runner_of(engine).fails = lambda step: False
            return True

        runner_of(engine).fails = once
        for stream in streams:
            with pytest.raises(ReplyFailed, match="the step failed: RuntimeError: simulated failure"):
                stream.result()
        assert len(broken) == 1
        assert re.search(r" \(\w+\.py:\d+, in \w+\)$", broken[0].error), "the error does not name its line"
        assert list(host.submit([5], params(30)).result().tokens) == alone([5], 30)
        shot = host.snapshot()
        assert (shot.state, shot.blocks.in_use) == ("ready", 0)

    @pytest.mark.parametrize("where", ["schedule", "commit", "_preempt", "_stop_running"])
    @DEPTHS
    def test_an_error_in_the_scheduler_ends_every_request_with_the_reason(
        self, opened: Open, monkeypatch: pytest.MonkeyPatch, where: str, depth: int
    ) -> None:
        """Wherever it occurs: in the middle of a preemption, a request is in no queue."""
        engine = roomy_engine(depth)
        host = opened(engine)
        died: list[events.Event] = []
        host.subscribe(lambda event: died.append(event) if event.kind == "died" else None)
        real = getattr(engine.scheduler, where)

        def breaks(*args: Any, **more: Any) -> Any:
            real(*args, **more)
            raise ZeroDivisionError("scheduler broke")

        monkeypatch.setattr(engine.scheduler, where, breaks)
        with ThreadPoolExecutor(3) as pool:
            ends = [pool.submit(self._end_of, host, n) for n in range(3)]
            assert all("ZeroDivisionError: scheduler broke" in each.result(20) for each in ends)
        shot = host.snapshot()
        assert (shot.state, shot.error) == ("dead", "ZeroDivisionError: scheduler broke")
        assert (shot.running, shot.waiting, shot.blocks.in_use, len(died)) == (0, 0, 0, 1)
        assert (shot.rates.steps, shot.rates.prefill) == (0, 0)
        for stream in (host.submit([1], params()), host.fork(0)):
            with pytest.raises(EngineDead, match="stopped: ZeroDivisionError: scheduler broke"):
                stream.result()
        with pytest.raises(UnknownRequest):
            host.send(Update(0, {"top_k": 3})).result()
        host.send(Abort((0,))).result()

    @staticmethod
    def _end_of(host: EngineThread, n: int) -> str:
        try:
            stream = host.submit([n], params(50_000))
            next(iter(stream))  # a request that waits would not be preempted
            with suppress(UnknownRequest):  # dead already, as the stream will report
                host.send(Preempt(stream.id)).result()
            return stream.result().finish.value
        except (ReplyFailed, EngineDead) as error:
            return str(error)

    def test_an_error_in_detokenizing_ends_every_request(
        self, opened: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = roomy_engine()
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

    def test_the_reason_of_a_lost_rank_is_its_sentence(
        self, opened: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = roomy_engine()

        def breaks() -> None:
            raise EngineDead("rank 1 was killed by SIGKILL")

        monkeypatch.setattr(engine.ranks, "check", breaks, raising=True)
        with pytest.raises((ReplyFailed, EngineDead), match=r"^(the engine has stopped: )?rank 1 was killed"):
            opened(engine).submit([5], params(30)).result()

    def test_a_lost_device_ends_the_engine(self, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = roomy_engine()
        host = opened(engine)
        monkeypatch.setattr(engine.runner, "device_error", lambda: "the GPU is gone")
        stream = endless(host)
        runner_of(engine).fails = lambda step: True
        with pytest.raises(ReplyFailed, match="simulated failure"):
            stream.result()
        with pytest.raises(EngineDead, match="the GPU is gone"):
            host.submit([1], params()).result()

    def test_a_subscriber_that_raises_is_dropped(
        self, opened: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        host = opened(ledger_engine())
        received: list[str] = []
        called = 0

        def failing(event: events.Event) -> None:
            nonlocal called
            called += 1
            raise ValueError("clumsy")

        host.subscribe(failing)
        stop = host.subscribe(lambda event: received.append(event.kind))
        host.submit([1], params(2)).result()
        host.snapshot()  # the last token arrives a little before the event of the end
        assert called == 1
        assert "a subscriber failed on queued and was dropped" in caplog.text
        assert received == ["queued", "admitted", "firsttoken", "finished"]
        stop()
        host.submit([1], params(2)).result()
        host.snapshot()
        assert len(received) == 4

    def test_subscribers_from_many_threads_are_all_kept(self, opened: Open) -> None:
        host = opened(ledger_engine())
        received: list[int] = []
        start = threading.Barrier(8)

        def subscribe(thread: int) -> list[Callable[[], None]]:
            start.wait(10)
            return [
                host.subscribe(lambda event, n=n: received.append(n) if event.kind == "queued" else None)
                for n in range(thread * 100, thread * 100 + 100)
            ]

        with ThreadPoolExecutor(8) as pool:
            stops = [stop for stops in pool.map(subscribe, range(8)) for stop in stops]
        host.submit([1], params(1)).result()
        assert sorted(received) == list(range(800))
        for stop in stops:
            stop()
        host.submit([1], params(1)).result()
        assert len(received) == 800


class TestClosing:
    @DEPTHS
    def test_closing_ends_running_and_waiting_requests(self, depth: int) -> None:
        engine = roomy_engine(depth, slots=2)
        host = EngineThread(engine)
        streams = [endless(host, n) for n in range(2)] + [host.submit([7], params(9))]
        streams[-1].accepted.result()
        host.close()
        for stream in streams:
            with pytest.raises(ReplyFailed, match="the engine was closed"):
                stream.result()
        engine.scheduler.check()
        assert engine.scheduler.pool.in_use == 0
        commands = (
            lambda: host.submit([1], params()).result(),
            host.snapshot,
            lambda: host.send(Abort((0,))).result(),
        )
        for command in commands:
            with pytest.raises(EngineDead, match="has been closed"):
                command()
        host.close()

    def test_calls_while_closing_get_an_answer(self) -> None:
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

            threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
            for thread in threads:
                thread.start()
            start.wait(10)
            host.close()
            for thread in threads:
                thread.join(10)
            assert len(ends) == 4
            assert all("closed" in end for end in ends)
