"""Captures of two engines do not mix, and what waits for a capture that failed. No GPU is needed."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Thread

import pytest
import torch

from engine.execution.cuda.recording import Recorder, Recording, recording_stream
from tests.waiting import LIMIT, NotingLock

DEVICE = torch.device("cuda", 0)


@dataclass(eq=False)
class Stream:
    waited: list["Stream"] = field(default_factory=list)

    def wait_stream(self, other: "Stream") -> None:
        self.waited.append(other)


class Graph:
    open = 0  # captures in progress

    def capture_begin(self, **how: object) -> None:
        Graph.open += 1

    def capture_end(self) -> None:
        Graph.open -= 1

    def replay(self) -> None:
        pass


@pytest.fixture
def current_stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    """The stream that is current in the test."""
    stream = Stream()
    for name, stands_in in {
        "CUDAGraph": Graph,
        "Stream": lambda device: Stream(),
        "current_stream": lambda: stream,
        "stream": lambda stream: nullcontext(),
        "graph_pool_handle": object,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stands_in)
    recording_stream.cache_clear()
    yield stream
    recording_stream.cache_clear()


class Done:
    def wait(self, seconds: float | None = None) -> bool:
        return True


def test_a_launch_is_not_captured_into_the_graph_of_another_engine(current_stream: Stream) -> None:
    inside, launched, lock = Event(), Event(), NotingLock()

    def recorded() -> tuple[()]:
        if Graph.open:
            inside.set()
            assert lock.waited.wait(LIMIT), "the other engine did not try to launch"
            assert not launched.is_set()
        return ()

    def beside() -> tuple[()]:
        launched.set()
        return ()

    def at_once(launches: Callable[[], object]) -> Done:
        launches()
        return Done()

    recorders = Recorder(DEVICE), Recorder(DEVICE)
    assert recorders[0].alone is recorders[1].alone
    for each in recorders:
        each.alone = lock  # type: ignore[assignment]
    one = Recording(recorders[0], recorded, partial(at_once, recorded))
    other = Recording(recorders[1], beside, partial(at_once, beside))
    one.run()  # the first run is not captured

    def run_other() -> None:
        inside.wait()
        other.run()

    thread = Thread(target=run_other, daemon=True)
    thread.start()
    one.run()
    thread.join()
    assert inside.is_set()
    assert launched.is_set()


def test_later_work_waits_for_a_step_that_failed(current_stream: Stream) -> None:
    recorder = Recorder(DEVICE)

    def launches() -> tuple[()]:
        raise torch.OutOfMemoryError("no memory")

    with pytest.raises(torch.OutOfMemoryError):
        Recording(recorder, launches, Done).run()
    assert recorder.stream.waited == [current_stream]
    assert current_stream.waited == [recorder.stream]


@pytest.mark.parametrize("full", [False, True])
def test_launches_are_compiled_once(current_stream: Stream, full: bool) -> None:
    seen: list[str] = []
    recorder = Recorder(DEVICE)
    recorder.full = full

    def launches() -> tuple[()]:
        seen.append("launched")
        return ()

    def compiles() -> Done:
        seen.append("compiled")
        return Done()

    recording = Recording(recorder, launches, compiles)
    for _ in range(4):
        recording.run()
    assert seen == ["compiled", *["launched"] * (4 if full else 2)]


def test_only_the_first_of_all_launches_is_not_captured(current_stream: Stream) -> None:
    recorder, captured = Recorder(DEVICE), list[bool]()

    def launches() -> tuple[()]:
        captured.append(Graph.open > 0)
        return ()

    for _ in range(3):
        recording = Recording(recorder, launches, Done)
        for _ in range(3):
            recording.run()
        assert recorder.captures == len(captured), "replays are none, also the first run of all counts"
    assert captured == [False, True, True, True]


def test_a_step_that_does_not_compile_is_not_captured(current_stream: Stream) -> None:
    def fails() -> Done:
        raise RuntimeError("it does not compile")

    def launches() -> tuple[()]:
        raise AssertionError("launched")

    recording = Recording(Recorder(DEVICE), launches, fails)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="it does not compile"):
            recording.run()


def test_a_capture_before_the_first_run_launches_nothing(current_stream: Stream) -> None:
    recorder, launched = Recorder(DEVICE), list[bool]()

    def launches() -> tuple[()]:
        launched.append(Graph.open > 0)
        return ()

    recordings = [Recording(recorder, launches, Done) for _ in range(2)]
    recordings[0].capture()
    assert not launched, "libraries have no workspaces before a step has run"
    recordings[0].run()
    recordings[1].capture()
    recordings[1].capture()
    recordings[1].run()
    assert launched == [False, True]
