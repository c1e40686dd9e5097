"""Settings of the interpreter that the screen and an engine thread share, and of a server's.

Measured with four streaming panes: docs/screen.md; with 256 requests at once: docs/server.md.
"""

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from engine.generated import keeping
from engine.interrupts import interrupts_kept

# Seconds that a thread may hold the interpreter lock while another waits for it. A step of a small model
# needs the lock dozens of times, once after each operation, and each time waited up to 5 ms while
# the screen was drawing.
_HANDOFF = 1e-4
# A collection of this many objects takes a few milliseconds. The oldest generation holds the whole program
# and takes 20 to 100 ms, so it is left to `tidy`, and to programs that leak.
_GENERATIONS = (4_000, 5, 1_000)
# Of a server. A request makes a few hundred objects, few of them in cycles, and outlives several collections
# of the usual 700 objects.
_SERVING = (20_000, 10, 10)


def share() -> None:
    """Call before the screen starts."""
    sys.setswitchinterval(_HANDOFF)
    gc.set_threshold(*_GENERATIONS)


@contextmanager
def serving() -> Iterator[Callable[[], None]]:
    """Begin with a server's imports. Yields what to call once it is ready: collections leave out what it has
    by then. The oldest generation took 0.1 s, in which no request was read.
    """
    with ExitStack() as starting:
        starting.callback(gc.enable)
        gc.disable()
        starting.enter_context(keeping("server"))

        def ready() -> None:
            gc.freeze()
            gc.set_threshold(*_SERVING)
            starting.close()

        yield ready


@contextmanager
def loading(use: str = "engine") -> Iterator[None]:
    """Turn off garbage collection while torch and an engine load, or the modules of the screen: they create
    hundreds of thousands of permanent objects. Scanning them took a tenth of the time, and would delay keys
    and tokens later. The code that they generate is kept in a file for this `use`.
    """
    gc.disable()
    try:
        with interrupts_kept(), keeping(use):
            yield
        gc.freeze()
    finally:
        gc.enable()


def open_torch() -> None:
    """Open torch's libraries before torch is imported, so that the screen does not freeze meanwhile.

    The import opens them with the interpreter locked, which took one to two seconds. It finds them open.
    """
    spec = None if "torch" in sys.modules else find_spec("torch")
    for folder in (spec and spec.submodule_search_locations) or ():
        suffix = "dylib" if sys.platform == "darwin" else "so"
        # As torch does: first what it needs, visible to all libraries.
        open_library(Path(folder, "lib", f"libtorch_global_deps.{suffix}"), os.RTLD_GLOBAL)
        open_library(Path(folder, "lib", f"libtorch.{suffix}"))


def open_library(file: Path, visible: int = os.RTLD_LOCAL) -> bool:
    """Open a library while other threads run: a call through ctypes releases the lock, `CDLL()` does not.

    Return whether that worked. If not, the import reports the error.
    """
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    return dlopen(os.fsencode(file), os.RTLD_NOW | visible) is not None


def tidy() -> None:
    """Collect garbage while nothing runs, so that no step is delayed."""
    gc.collect()
