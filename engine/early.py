"""What a start on a GPU can do while torch is imported: neither needs Python's lock (the GIL) for long."""

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_TURN = 0.0005  # seconds
_gate = threading.Lock()
_usual: list[float] = []  # the interval before, once for each thread that is inside


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
                sys.setswitchinterval(usual)


def prepare_gpu(device: str) -> Callable[[], None]:
    """Create the GPU's context and hash Triton's files, on another thread; nothing without a GPU.

    Returns what waits until that thread imports nothing any more. Call it before something else imports
    Triton: two threads that import its modules in different orders can find one that is not complete.
    """
    if device == "cpu":
        return lambda: None
    imported = threading.Event()
    threading.Thread(target=_prepare, args=(device, imported), name="early", daemon=True).start()

    def wait() -> None:
        imported.wait()

    return wait


def _prepare(device: str, imported: threading.Event) -> None:
    _, _, index = device.partition(":")
    with short_turns():
        try:
            if not _create_context(int(index) if index.isdigit() else 0):
                return
            from triton.runtime.cache import triton_key
        finally:
            imported.set()
        # Triton hashes its compiler before it finds the first kernel in its cache, and keeps the result.
        triton_key()


def _create_context(index: int) -> bool:
    """Retain the primary context, which torch will use. torch reports why there is none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    gpu, context = ctypes.c_int(), ctypes.c_void_p()
    return (
        cuda.cuInit(0) == 0
        and cuda.cuDeviceGet(ctypes.byref(gpu), index) == 0
        and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu) == 0
    )
