"""What the screen and the engine do to each other by sharing one interpreter."""

import asyncio
import gc
import sys
import weakref
from collections.abc import Iterator

import pytest

from minichat.clients.fake import FakeBackend
from minichat.shell import interpreter
from minichat.ui.pulse import Pulse
from tests.app.conftest import run, snapshot


class Ring:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture
def _as_before() -> Iterator[None]:
    interval, generations = sys.getswitchinterval(), gc.get_threshold()
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*generations)
    gc.freeze()  # as tests/conftest.py has it


@pytest.mark.usefixtures("_as_before")
def test_a_waiting_engine_gets_the_interpreter_soon_and_no_walk_is_long() -> None:
    interpreter.share()
    assert sys.getswitchinterval() < 0.001
    young, middle, _old = gc.get_threshold()
    assert young * middle <= 20_000


@pytest.mark.usefixtures("_as_before")
def test_nothing_is_collected_while_a_model_is_loaded_and_what_was_made_is_never_walked() -> None:
    gc.unfreeze()
    with interpreter.loading():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
    gc.unfreeze()


def test_a_model_that_cannot_be_loaded_leaves_no_garbage_behind() -> None:
    frozen = gc.get_freeze_count()
    with pytest.raises(OSError), interpreter.loading():
        raise OSError
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen


def _ring() -> "weakref.ref[Ring]":
    return weakref.ref(Ring())


@run
async def test_garbage_is_collected_when_the_engine_comes_to_rest() -> None:
    backend = FakeBackend([snapshot(1, running=(0,)), snapshot(2, rates=snapshot().rates)])
    pulse = Pulse(backend, lambda _: None, lambda: True, rate=1000)
    gc.disable()
    try:
        ring = _ring()
        pulse.wake()
        while pulse._task is not None and not pulse._task.done():
            await asyncio.sleep(0.001)
        assert ring() is None
        ring = _ring()
        pulse.wake()  # somebody looks, though nothing runs
        while not pulse._task.done():
            await asyncio.sleep(0.001)
        assert ring() is not None
    finally:
        gc.enable()
