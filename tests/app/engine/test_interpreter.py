"""How the screen and the engine share one interpreter, and how a server uses its own."""

import dataclasses
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from engine import generated
from minichat.clients.fake import FakeBackend
from minichat.shell import interpreter
from minichat.ui.snapshot_poller import SnapshotPoller
from tests.app.conftest import run, snapshot
from tests.waiting import until


class Cycle:
    """A reference cycle, which only a garbage collection frees."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture
def _restored() -> Iterator[None]:
    interval, generations = sys.getswitchinterval(), gc.get_threshold()
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*generations)
    gc.freeze()  # as in tests/conftest.py


@pytest.mark.usefixtures("_restored")
def test_a_waiting_engine_gets_the_interpreter_soon_and_collections_are_short() -> None:
    interpreter.share()
    assert sys.getswitchinterval() < 0.001
    young, middle, _old = gc.get_threshold()
    assert young * middle <= 20_000


@pytest.mark.usefixtures("_restored")
def test_loading_a_model_disables_collection_and_freezes_its_objects() -> None:
    gc.unfreeze()
    with interpreter.loading():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
    gc.unfreeze()


@pytest.mark.usefixtures("_restored")
def test_collections_of_a_server_leave_out_what_it_had_when_it_was_ready() -> None:
    gc.unfreeze()
    there = [Cycle() for _ in range(10)]
    with interpreter.serving() as ready:
        assert not gc.isenabled()
        ready()
        assert gc.isenabled()
    assert not any(each in there for each in gc.get_objects() if type(each) is Cycle)
    assert gc.get_threshold()[0] > 700


@pytest.mark.usefixtures("_restored")
def test_a_server_that_does_not_start_leaves_collection_on() -> None:
    with pytest.raises(OSError), interpreter.serving():
        raise OSError
    assert gc.isenabled()


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize("context", [interpreter.loading, interpreter.serving])
def test_imports_of_a_start_use_code_that_an_earlier_one_has_kept(
    context: Callable[[], AbstractContextManager[object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generated, "_file", lambda use: tmp_path / use)
    for kept in (0, 1):
        assert len([*tmp_path.iterdir()]) == kept
        with context():
            assert "exec" in vars(dataclasses)
            dataclasses.make_dataclass("Point", ["x"])
        assert "exec" not in vars(dataclasses)


@pytest.mark.usefixtures("_restored")
def test_a_model_that_cannot_be_loaded_freezes_nothing() -> None:
    gc.unfreeze()  # what other tests froze would be counted as long as it lives
    with pytest.raises(OSError), interpreter.loading():
        raise OSError
    assert gc.isenabled()
    assert not gc.get_freeze_count()


_LOADS = """
import sys
from engine.api.config import EngineConfig
from engine.api.errors import ModelNotFound
from minichat.clients.local import on_thread
from minichat.commands.options import running

def command(config, progress):
    with running(config):
        pass

for load in (on_thread, command):
    for model in ("no-model/no/where", "pocket"):
        sys.modules.pop("torch", None)
        try:
            load(EngineConfig(model=model), lambda done, total: None)
        except (ModelNotFound, ImportError):
            print(model, "torch" in sys.modules)
"""
_TORCH = """
import inspect, sys
assert "_Finder" in map(lambda each: type(each).__name__, sys.meta_path), "all of torch is imported"
print("torch")
"""


def test_an_engine_of_the_screen_leaves_out_parts_of_torch_as_one_of_a_server_does(tmp_path: Path) -> None:
    """With a torch that has nothing. A wrong name is refused before it is imported."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(_TORCH)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    ran = subprocess.run([sys.executable, "-c", _LOADS], env=environment, capture_output=True, text=True)
    assert not ran.stderr
    once = ["no-model/no/where False", "torch", "pocket True"]
    assert ran.stdout.splitlines() == 2 * once


_OPENS_A_PIPE = """
import sys, threading
from pathlib import Path
from minichat.shell.interpreter import open_library
pipe = Path(sys.argv[1])
threading.Thread(target=pipe.write_bytes, args=(b"no library",)).start()
assert not open_library(pipe)
"""


def test_other_threads_run_while_a_library_opens(tmp_path: Path) -> None:
    """Opening a pipe blocks until another thread writes to it, so this never ends if the lock is held."""
    os.mkfifo(pipe := tmp_path / "pipe")
    subprocess.run([sys.executable, "-c", _OPENS_A_PIPE, str(pipe)], check=True, timeout=60)


_OPENS_TORCH = """
import sys
from pathlib import Path
from minichat.shell.interpreter import open_torch
open_torch()
assert "torch" not in sys.modules
assert "libtorch_cpu" in Path("/proc/self/maps").read_text()
import torch
assert torch.ones(2).sum() == 2
"""


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_torch_finds_its_libraries_open() -> None:
    subprocess.run([sys.executable, "-c", _OPENS_TORCH], check=True, timeout=60)


def _cycle() -> "weakref.ref[Cycle]":
    return weakref.ref(Cycle())


@run
async def test_garbage_is_collected_when_the_engine_becomes_idle() -> None:
    backend = FakeBackend([snapshot(1, running=(0,)), snapshot(2, rates=snapshot().rates)])
    poller = SnapshotPoller(backend, lambda _: None, lambda: True, rate=1000)
    gc.disable()
    try:
        ring = _cycle()
        poller.wake()
        await until(lambda: poller.resting)
        assert ring() is None
        ring = _cycle()
        poller.wake()  # the screen polls although nothing runs
        await until(lambda: poller.resting)
        assert ring() is not None
    finally:
        gc.enable()
