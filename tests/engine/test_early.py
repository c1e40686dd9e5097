"""What a start does on another thread while torch is imported."""

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine import early
from tests.cases import soak

PROGRAM = """
import sys, threading
from engine import early

gate = threading.Event()  # Triton's import ends once something waits for it

class Awaited(threading.Event):
    def wait(self, timeout=None):
        gate.set()
        return super().wait(timeout)

early._create_context = lambda index: True
threading.Event = Awaited
early.prepare_gpu("cuda:1")()
print(getattr(sys.modules.get("triton.runtime.cache"), "done", False))
"""
CACHE = """
import inspect
def triton_key(): pass
done = inspect.getsourcelines.__module__ == "engine.early"  # it asks for the lines of its functions
"""
ALONE = """
import threading
from engine.early import prepare_gpu
prepare_gpu("cpu")()
print(threading.active_count())
"""
TORCH = """
import sys
from engine import early
class Watch:
    def find_spec(self, name, path, target=None):
        if name == "torch._C":
            print("libtorch.so" in open("/proc/self/maps").read())
sys.meta_path.insert(0, Watch())
early.import_torch()
import torch
print(torch.ones(2).sum().item(), [type(each).__name__ for each in sys.meta_path[:1]])
"""

FRAMES = """
import inspect, sys
before = len(inspect.modulesbyfile)
found = inspect.getframeinfo(sys._getframe()), inspect.getmodule(sys._getframe())
print(found[0].lineno, found[1].__name__, len(inspect.modulesbyfile) - before)
"""
IMPORT = """
import inspect
from engine import early
usual = inspect.getmodule
early.import_torch()
print(inspect.getmodule is usual)
"""

LOST = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    raise RuntimeError("cannot initialize a type")  # as modules in C do that import others
"""
INTERRUPTED = """
from engine import early
try:
    early.import_torch()
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupted_import_of_torch_is_not_taken_for_a_failed_one(tmp_path: Path) -> None:
    """The next import of torch would end the process with a fault of memory."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(LOST)
    assert printed(INTERRUPTED, str(tmp_path)) == "interrupted\n"


def test_the_import_of_torch_does_not_compare_the_files_of_all_modules(tmp_path: Path) -> None:
    """It registers operators, and asks for the module of the frame that does."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(FRAMES)
    assert printed(IMPORT, str(tmp_path)) == "4 torch 0\nTrue\n"


@pytest.mark.parametrize("variable", [*soak(None), "/nowhere"])
def test_the_libraries_of_torch_are_loaded_before_the_module_that_needs_them(
    monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    """Without the GIL. With LD_LIBRARY_PATH, torch loads others before them."""
    if variable is None:
        monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    else:
        monkeypatch.setenv("LD_LIBRARY_PATH", variable)
    assert printed(TORCH) == "True\n2.0 ['_Finder']\n"


def test_the_turns_of_threads_are_as_long_as_before() -> None:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # as the screen has them; Python then says 9.999999999999999e-05
    try:
        for _ in range(3):
            with early.short_turns():
                pass
        assert sys.getswitchinterval() == pytest.approx(1e-4)
    finally:
        sys.setswitchinterval(usual)


def test_a_start_waits_until_triton_is_imported(tmp_path: Path) -> None:
    """Two threads that import it at the same time can each find a part of it missing."""
    runtime = tmp_path / "triton" / "runtime"
    runtime.mkdir(parents=True)
    (tmp_path / "triton" / "__init__.py").write_text("import __main__; __main__.gate.wait()")
    (runtime / "__init__.py").touch()
    (tmp_path / "triton" / "knobs.py").write_text(f"class cache: dir = {str(tmp_path)!r}")
    (runtime / "cache.py").write_text(CACHE)
    assert printed(PROGRAM, str(tmp_path)) == "True\n"


def test_nothing_waits_without_a_gpu() -> None:
    assert printed(ALONE) == "1\n"


def printed(program: str, *folders: str) -> str:
    paths = os.pathsep.join([*folders, str(Path(__file__).parents[2])])
    environment = os.environ | {"PYTHONPATH": paths}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert not ran.stderr
    return ran.stdout


def plain(x: int) -> int:
    return (
        x
        # a comment inside
        + 1
    )  # and one beside


def commented(x: int) -> int:
    return x
    # belongs to it, since it is indented


# does not belong to the one before
def last(x: int) -> int:
    """One line.

    More of it.
    """


@pytest.mark.parametrize(
    ("function", "quick"), [(plain, True), (commented, False), (last, False), (len, False)]
)
def test_the_lines_of_a_function_are_found_without_its_tokens(function: Any, quick: bool) -> None:
    assert (early._lines_of(function) is not None) is quick
    if function is not len:
        usual = inspect.getsourcelines(function)
        with early.quick_sources():
            assert inspect.getsourcelines(function) == usual
