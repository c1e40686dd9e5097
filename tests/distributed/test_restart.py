"""A rank that dies or hangs under load: every request ends with the reason, and the engine comes back."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.api.config import EngineConfig
from engine.api.events import Event, Restarted, Restarting
from engine.host.process import EngineProcess
from engine.host.restarting import RestartingEngine
from engine.host.stream import ReplyFailed, Stream
from tests.runner.small import GREEDY, alone
from tests.waiting import becomes

PROMPT = [1, 5, 9, 30]
LONG = GREEDY.changed(max_tokens=200)
LIMIT = 10.0  # seconds until the last request has ended


@contextmanager
def restarting(model: Path, log: Path, restarts: int) -> Iterator[tuple[RestartingEngine, list[Event]]]:
    def start(first: int) -> EngineProcess:
        config = EngineConfig(
            model=str(model), device="cpu", tp=2, blocks=64, max_running=4, first_request=first
        )
        return EngineProcess(config, log)

    events = list[Event]()
    host = RestartingEngine(start, restarts, pauses=(0.0,))
    host.subscribe(events.append)
    try:
        yield host, events
    finally:
        host.close()


def pids(host: RestartingEngine) -> list[int]:
    """The processes of all ranks."""
    return [each.pid for each in host.snapshot().ranks]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def shared_memory() -> set[str]:
    """Without the semaphores of multiprocessing, which engines do not use but other tests may."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp-")}


def endings(host: RestartingEngine, number: signal.Signals, turn: int = 0) -> list[str]:
    """Signal rank 1 while requests run and wait. Return why those that could not finish have ended.

    `turn`: makes the prompts new, because one that has been there at two deaths is refused.
    """
    before = pids(host)
    streams: list[Stream] = [host.submit([*PROMPT, n, turn], LONG) for n in range(12)]
    assert becomes(lambda: host.snapshot().running > 0)
    began, errors = time.monotonic(), list[str]()
    os.kill(before[1], number)
    for stream in streams:
        try:
            stream.result()
        except ReplyFailed as error:
            errors.append(str(error))
    assert time.monotonic() - began < LIMIT
    assert errors, "all requests finished"
    assert becomes(lambda: not alive(before[1]))
    return errors


@pytest.mark.soak
def test_a_stopped_and_a_killed_rank(llama: Path, tmp_path: Path) -> None:
    shared = shared_memory()
    with restarting(llama, tmp_path / "log", restarts=1) as (host, events):
        for error in endings(host, signal.SIGSTOP):
            assert "rank 1 did not respond for 5 seconds and was killed" in error
        assert becomes(lambda: host.snapshot().state == "ready")
        assert [*host.submit(PROMPT, GREEDY).result().tokens] == alone(llama, PROMPT).tokens
        assert [type(each) for each in events if isinstance(each, Restarting | Restarted)] == [
            Restarting,
            Restarted,
        ]
        last = pids(host)
        for error in endings(host, signal.SIGKILL):
            assert "rank 1 was killed by SIGKILL" in error
        assert becomes(lambda: host.snapshot().state == "dead"), "it was started more often than allowed"
    assert becomes(lambda: not any(map(alive, last)))
    assert shared_memory() <= shared


@pytest.mark.soak
def test_many_deaths(llama: Path, tmp_path: Path) -> None:
    """Also of the engine's own process, which is rank 0."""
    with restarting(llama, tmp_path / "log", restarts=20) as (host, _):
        files = len(os.listdir("/proc/self/fd"))
        for turn in range(9):
            reason = endings(host, (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)[turn % 3], turn)
            assert all("rank 1" in each for each in reason)
            assert becomes(lambda: host.snapshot().state == "ready")
            before = pids(host)
            if turn % 3 == 2:
                os.kill(host.pid, signal.SIGKILL)
                assert becomes(lambda before=before: not any(map(alive, before)))
                assert becomes(lambda: host.snapshot().state == "ready")
            assert [*host.submit(PROMPT, GREEDY).result().tokens] == alone(llama, PROMPT).tokens
        assert len(os.listdir("/proc/self/fd")) <= files
