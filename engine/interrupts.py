"""Ctrl+C while modules are imported."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Raise KeyboardInterrupt if Ctrl+C came meanwhile, whatever became of it.

    Modules in C that import others turn it into errors of their own: an ImportError in numpy, a
    RuntimeError in torch. Who suppresses such an error and imports torch again ends in a crash.
    """
    usual = signal.getsignal(signal.SIGINT)
    if not callable(usual) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        usual(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception:
        if not came:
            raise
    finally:
        signal.signal(signal.SIGINT, usual)
    if came:
        raise KeyboardInterrupt
