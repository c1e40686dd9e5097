"""Processes that do nothing, in place of engines that lend memory."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

Process = subprocess.Popen[bytes]


def begun() -> Process:
    return subprocess.Popen(["cat"], stdin=subprocess.PIPE)


def end(process: Process, *, reaped: bool = True) -> None:
    """Kill it, and return once it has ended. `reaped`: and its number is free again."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | (0 if reaped else os.WNOWAIT))


@contextmanager
def lending() -> Iterator[Process]:
    with begun() as process:
        yield process
        process.kill()
