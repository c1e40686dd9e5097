"""What an engine's start does while its modules are imported: torch, and the GPU's context beside it."""

import ctypes
import linecache
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import Any

from engine.interrupts import interrupts_kept
from engine.kernels.cpu.compiled import build
from engine.kernels.triton_hash import hash_triton
from engine.kv.pinned import pinned_ahead
from engine.later import postponed
from engine.timeline import timed

_TURN = 0.0005  # seconds
_HALF = 5e-7  # seconds, half of Python's unit for intervals, to which it rounds down
_gate = threading.Lock()
_usual: list[float] = []  # the interval before, once for each thread that is inside
_prepared: dict[str, threading.Event] = {}  # by device: set once its thread has imported everything
_preparing: list[threading.Thread] = []


@contextmanager
def short_turns() -> Iterator[None]:
    """Threads get the GIL after half a millisecond. By default each waits 5 ms for one that computes."""
    with _gate:
        _usual.append(_usual[0] if _usual else sys.getswitchinterval())
        sys.setswitchinterval(min(_usual[0], _TURN))
    try:
        yield
    finally:
        with _gate:
            usual = _usual.pop()
            if not _usual:
                sys.setswitchinterval(usual + _HALF)


def prepare_gpu(device: str, pinned: int = 0) -> Callable[[], None]:
    """Create the GPU's context and hash Triton's files, on another thread, once; nothing without a GPU.

    `pinned`: bytes of host memory to pin for blocks (engine/kv/pinned.py).

    Returns a function that waits for the imports of that thread. Call it before something else imports
    Triton: two threads that import its modules in different orders can find one that is not complete.
    """
    if device == "cpu":
        return lambda: None
    with _gate:
        begun = device in _prepared
        imported = _prepared.setdefault(device, threading.Event())
    if not begun:
        thread = threading.Thread(target=_prepare, args=(device, imported, pinned), name="early", daemon=True)
        thread.start()
        _preparing.append(thread)

    def wait() -> None:
        imported.wait()

    return wait


def wait_for_hash() -> None:
    """Return once Triton's files are hashed, if that has begun. Another thread would hash them again."""
    for thread in _preparing:
        thread.join()


def _prepare(device: str, imported: threading.Event, pinned: int) -> None:
    _, _, name = device.partition(":")
    index = int(name) if name.isdigit() else 0
    with short_turns():
        try:
            with timed("the GPU's context"):
                found = _create_context(index)
            if found:
                if pinned and (retained := _retained(index)) is not None:
                    pinned_ahead.begin(*retained, pinned)
                with timed("Triton imported"), quick_sources():
                    __import__("triton.runtime.cache")
        finally:
            imported.set()
        if not found:
            with timed("the CPU's kernels"):
                build.prepare()
            return
        # Triton hashes its compiler before it finds the first kernel in its cache.
        with timed("the hash of Triton's files"):
            hash_triton()


def import_torch() -> None:
    """Import torch. Another thread that needs it before it is there waits for this one.

    Best on the main thread: the memory of others grows by a call of the system for each page, 11,000 here.
    """
    if "torch" in sys.modules:
        return
    os.environ.setdefault("TRITON_STORE_BINARY_ONLY", "1")  # a start would read the texts, too
    # The import that needs it reports why it failed.
    with (
        interrupts_kept(),
        suppress(Exception),
        short_turns(),
        quick_frames(),
        postponed(),
        timed("torch"),
        _quick_libraries(),
    ):
        __import__("torch")


@contextmanager
def quick_frames() -> Iterator[None]:
    """`inspect` finds the module of a frame by its name.

    By default it resolves the paths of all modules and compares them. torch registers a hundred operators
    while it is imported, and asks for the module of each: 14,000 of its 21,000 calls of `stat`.
    """
    import inspect

    usual = inspect.getmodule

    def getmodule(object: Any, _filename: str | None = None) -> ModuleType | None:
        named = sys.modules.get(object.f_globals.get("__name__", "")) if inspect.isframe(object) else None
        return named or usual(object, _filename)

    inspect.getmodule = getmodule
    try:
        yield
    finally:
        inspect.getmodule = usual


@contextmanager
def quick_sources() -> Iterator[None]:
    """`inspect` finds the last line of a function by the positions of its code.

    By default it tokenizes the function in Python. Triton asks for the lines of each kernel.
    """
    import inspect

    usual = inspect.getsourcelines

    def getsourcelines(object: Any) -> tuple[list[str], int]:
        return _lines_of(object) or usual(object)

    inspect.getsourcelines = getsourcelines
    try:
        yield
    finally:
        inspect.getsourcelines = usual


def _lines_of(function: Any) -> tuple[list[str], int] | None:
    """None: it is no plain function, or what follows it may belong to it."""
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        return None
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)
    first = code.co_firstlineno
    last = max((end for _, end, _, _ in code.co_positions() if end), default=0)
    after = next((line for line in lines[last:] if not line.isspace()), "")
    whole = first <= last <= len(lines) and not after[:1].isspace()
    return (lines[first - 1 : last], first) if whole else None


class _Libraries:
    """Loads torch's libraries without the GIL, which its import would hold meanwhile.

    torch loads what they need first, in an order of its own. Then it imports `torch._C`, which loads them.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        if name == "torch._C":
            with timed("torch's libraries"):
                for folder in path or ():
                    _load(os.path.join(folder, "lib", "libtorch.so"), os.RTLD_LOCAL)


@contextmanager
def _quick_libraries() -> Iterator[None]:
    spec, finder = find_spec("torch"), _Libraries()
    for folder in (spec and spec.submodule_search_locations) or ():  # the first ones that torch loads
        _load(os.path.join(folder, "lib", "libtorch_global_deps.so"), os.RTLD_GLOBAL)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _load(file: str, visible: int) -> None:
    """If that fails, the import reports why."""
    if os.path.isfile(file):
        dlopen = ctypes.CDLL(None).dlopen  # a C function like others, unlike the import of a module
        dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
        dlopen(file.encode(), os.RTLD_NOW | visible)


def _create_context(index: int) -> bool:
    return _retained(index) is not None


def _retained(index: int) -> tuple[Any, ctypes.c_void_p] | None:
    """Retain the primary context, which torch will use. torch reports why there is none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    gpu, context = ctypes.c_int(), ctypes.c_void_p()
    found = (
        cuda.cuInit(0) == 0
        and cuda.cuDeviceGet(ctypes.byref(gpu), index) == 0
        and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu) == 0
    )
    return (cuda, context) if found else None
