"""The one interpreter that the screen and an engine on a thread share: who has it for how long.

Measured with four panes streaming: docs/screen.md.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Seconds that a thread may keep the interpreter while another waits for it. A step of a small model asks
# for it dozens of times, once after each operation, and waited up to 5 ms each time while
# the screen was drawing.
_HANDOFF = 1e-4
# So many objects are walked in a few milliseconds. The oldest are the whole program: a walk over them takes
# 20 to 100 ms, so it is left to `tidy`, and to a program that leaks.
_GENERATIONS = (4_000, 5, 1_000)


def share() -> None:
    """Before the screen begins."""
    sys.setswitchinterval(_HANDOFF)
    gc.set_threshold(*_GENERATIONS)


@contextmanager
def loading() -> Iterator[None]:
    """While torch and an engine come: hundreds of thousands of objects, which stay. Nothing walks over them
    meanwhile, which took a tenth of the time, nor later, when keys and tokens would wait for it.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def tidy() -> None:
    """While nothing runs, so that nobody waits for it."""
    gc.collect()
