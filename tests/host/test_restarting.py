"""An engine whose process dies is started again, and what was running when it died."""

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest

from engine.api.config import EngineConfig
from engine.api.errors import BadInput, EngineDead
from engine.api.events import Died, Event, Handler, Restarted, Restarting
from engine.api.expert_load import ExpertLoad
from engine.api.params import SamplingParams
from engine.api.speculation import Speculation
from engine.host.process import EngineProcess
from engine.host.restarting import RestartingEngine
from engine.host.stream import ReplyFailed
from tests.cases import soak
from tests.waiting import LIMIT, becomes
from tests.widgets.monitor.snapshots import snapshot

ENDLESS = SamplingParams(max_tokens=1000, ignore_eos=True, seed=1)
SHORT = SamplingParams(max_tokens=2, seed=1)
Start = Callable[[int], EngineProcess]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def started(first: int) -> EngineProcess:
        config = EngineConfig(model="pocket", blocks=64, first_request=first)
        return EngineProcess(config, tmp_path / "engine.log", dry_rate=20.0)

    return started


def kill(host: RestartingEngine) -> None:
    os.kill(host.pid, signal.SIGKILL)


def test_a_killed_process_is_replaced(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    may_start = threading.Event()

    def held(first: int) -> EngineProcess:
        assert not first or may_start.wait(LIMIT)
        return start(first)

    host, events = RestartingEngine(held, restarts=1, pauses=(0.0,), name="replica 3"), list[Event]()
    host.subscribe(events.append)
    lost = host.submit([7, 8, 9], ENDLESS)
    assert lost.accepted.result(10).id == 0
    assert becomes(lambda: host.snapshot().iteration_tokens.total >= 3)
    counted = [host.snapshot().iteration_tokens]
    kill(host)
    with pytest.raises(ReplyFailed, match="killed by SIGKILL"):
        lost.result()
    assert becomes(lambda: host.snapshot().state == "restarting")
    assert "killed by SIGKILL" in host.snapshot().error
    with pytest.raises(EngineDead, match="it is being restarted"):
        host.submit([7], SHORT).result()
    assert host.count("hello") > 0, "text functions need no engine"
    counted.append(host.snapshot().iteration_tokens)
    may_start.set()
    assert becomes(lambda: host.snapshot().state == "ready")
    assert host.count("hello") > 0
    counted.append(host.snapshot().iteration_tokens)

    died, back = (each.message for each in caplog.records)
    assert died.startswith("replica 3: the engine's process was killed by SIGKILL")
    assert re.fullmatch(r"replica 3: the engine runs again, after \d+\.\d s", back)
    again = host.submit([7, 8, 9], ENDLESS)
    assert again.accepted.result(10).id == 2**32, "no request number comes twice"
    assert len(host.submit([7], SHORT).result().tokens) == 2
    counted.append(host.snapshot().iteration_tokens)
    assert [each.total for each in counted[1:3]] == [counted[0].total] * 2, "what has ended stays counted"
    assert counted[3].total >= counted[0].total + 5 and sum(counted[3].counts) > sum(counted[0].counts)
    kill(host)  # once more than restarts allow
    with pytest.raises(ReplyFailed):
        again.result()
    assert becomes(lambda: host.snapshot().state == "dead")
    with pytest.raises(EngineDead, match=r"killed by SIGKILL \(possibly out of memory\); its log is"):
        host.submit([7], SHORT).result()
    host.close()
    kinds = [type(event) for event in events if isinstance(event, Died | Restarting | Restarted)]
    assert kinds == [Restarting, Restarted, Died]


def test_counters_do_not_fall() -> None:
    """Two processes, each of which has counted 40 replies, 2 preemptions and 7 evictions. The second one's
    requests have found half as much in the prefix cache, and looked up three times as much.
    """

    def started(number: int) -> EngineProcess:
        shot = snapshot(
            prefix_hit_rate=0.3 if number else 0.6,
            prompt_tokens=3000 if number else 1000,
            speculation=Speculation("", True, 10, 40, 30, 2.0 - bool(number), 10),
            experts=ExpertLoad((0,), 2, 1, np.array([5, 7])),
        )
        process = MagicMock(EngineProcess, last=shot, chat=None, error="")
        process.snapshot.return_value = process.last
        return process

    def counted() -> tuple[int, int, int]:
        shot = host.snapshot()
        return shot.finished, shot.preemptions, shot.blocks.evictions

    host = RestartingEngine(started, restarts=0)
    host.stop_process()
    assert (host.snapshot().state, counted()) == ("stopped", (40, 2, 7))
    host.start_process()
    assert becomes(lambda: host.snapshot().state == "ready")
    assert counted() == (80, 4, 14)
    shot = host.snapshot()
    assert (shot.prompt_tokens, shot.prefix_hit_rate) == (4000, pytest.approx(0.375))
    assert shot.speculation == Speculation("", True, 20, 80, 60, pytest.approx(4 / 3), 20)
    assert shot.experts is not None and shot.experts.counts.tolist() == [10, 14]
    host.close()


@pytest.mark.parametrize(("restarts", "state"), [(1, "restarting"), *soak((0, "dead"))])
def test_a_death_that_is_not_reported_yet_is_in_the_snapshot(start: Start, restarts: int, state: str) -> None:
    may_report = threading.Event()

    def held(first: int) -> EngineProcess:
        process = start(first)
        subscribe = process.subscribe

        def listen(handler: Handler) -> Callable[[], None]:
            def late(event: Event) -> None:
                assert not isinstance(event, Died) or may_report.wait(LIMIT)
                handler(event)

            return subscribe(late)

        process.subscribe = listen  # type: ignore[method-assign]
        return process

    host = RestartingEngine(held, restarts, pauses=(0.0,))
    kill(host)
    assert becomes(lambda: host.snapshot().state != "ready")
    shot = host.snapshot()
    assert (shot.state, "killed by SIGKILL" in shot.error) == (state, True)
    may_report.set()
    host.close()


def test_a_request_that_was_there_at_two_deaths_is_refused(start: Start) -> None:
    host = RestartingEngine(start, restarts=9, pauses=(0.0,))
    for _ in range(2):
        assert becomes(lambda: host.snapshot().state == "ready")
        suspect = host.submit([7, 8, 9], ENDLESS)
        suspect.accepted.result(10)
        kill(host)
        with pytest.raises(ReplyFailed):
            suspect.result()
    assert becomes(lambda: host.snapshot().state == "ready")
    with pytest.raises(BadInput, match="running at 2 deaths of the engine"):
        host.submit([7, 8, 9], ENDLESS).result()
    assert len(host.submit([7, 8, 9], SHORT).result().tokens) == 2, "another request"
    host.close()


def test_an_engine_that_cannot_be_started_again_is_dead(start: Start) -> None:
    firsts = list[int]()

    def once(first: int) -> EngineProcess:
        firsts.append(first)
        if first:
            raise OSError("the disk is gone")
        return start(first)

    host, events = RestartingEngine(once, restarts=3, pauses=(0.0,)), list[Event]()
    host.subscribe(events.append)
    kill(host)
    assert becomes(lambda: any(isinstance(event, Died) for event in events))
    with pytest.raises(EngineDead, match="could not be restarted: the disk is gone"):
        host.submit([7], SHORT).result()
    assert host.snapshot().state == "dead"
    assert len(firsts) == 1 + 3, "it tried as often as it may"
    host.close()


def test_a_start_that_fails_once_is_tried_again(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    failures = [OSError("memory is not free yet")]

    def second_time(first: int) -> EngineProcess:
        if first and failures:
            raise failures.pop()
        return start(first)

    host = RestartingEngine(second_time, restarts=2, pauses=(0.0,))
    kill(host)
    assert becomes(lambda: host.snapshot().state == "ready" and not failures)
    (said,) = (each for each in caplog.records if "could not be restarted" in each.message)
    assert "memory is not free yet; the next try is in 0 s" in said.message
    assert not said.exc_info, "a known reason needs no traceback"
    assert len(host.submit([7], SHORT).result().tokens) == 2
    host.close()


def test_it_can_be_closed_while_it_waits(start: Start) -> None:
    host = RestartingEngine(start, restarts=1, pauses=(60.0,))
    kill(host)
    assert becomes(lambda: host.snapshot().state == "restarting")
    host.close()


def test_a_process_whose_engine_has_died_is_replaced_too(start: Start) -> None:
    processes, handlers = list[EngineProcess](), list[Handler]()

    def kept(first: int) -> EngineProcess:
        process = start(first)
        subscribe = process.subscribe

        def listen(handler: Handler) -> Callable[[], None]:
            handlers.append(handler)
            return subscribe(handler)

        process.subscribe = listen  # type: ignore[method-assign]
        processes.append(process)
        return process

    host = RestartingEngine(kept, restarts=1, pauses=(0.0,))
    handlers[0](Died(3, 1.0, "this process has lost the GPU"))
    assert becomes(lambda: host.snapshot().state == "ready" and len(processes) == 2)
    assert processes[0].error == "the engine was closed"
    assert len(host.submit([7], SHORT).result().tokens) == 2
    host.close()
