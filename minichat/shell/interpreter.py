"""Settings of the interpreter that the screen and an engine thread share.

Measured with four streaming panes: docs/screen.md.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Seconds that a thread may hold the interpreter lock while another waits for it. A step of a small model
# needs the lock dozens of times, once after each operation, and each time waited up to 5 ms while
# the screen was drawing.
_HANDOFF = 1e-4
# A collection of this many objects takes a few milliseconds. The oldest generation holds the whole program
# and takes 20 to 100 ms, so it is left to `tidy`, and to programs that leak.
_GENERATIONS = (4_000, 5, 1_000)


def share() -> None:
    """Call before the screen starts."""
    sys.setswitchinterval(_HANDOFF)
    gc.set_threshold(*_GENERATIONS)


@contextmanager
def loading() -> Iterator[None]:
    """Turn off garbage collection while torch and an engine load: they create hundreds of thousands of
    permanent objects. Scanning them took a tenth of the time, and would delay keys and tokens later.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def tidy() -> None:
    """Collect garbage while nothing runs, so that no step is delayed."""
    gc.collect()
