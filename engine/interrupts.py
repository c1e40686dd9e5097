"""Ctrl+C while modules are imported."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Raise KeyboardInterrupt if Ctrl+C is pressed during the block, even if the block raises something else.

    Modules in C that import others turn it into errors of their own: an ImportError in numpy, a
    RuntimeError in torch. If such an error is suppressed and torch is imported again, Python crashes.
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
