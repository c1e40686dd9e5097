"""Lets one process at a time build the launcher of a kernel.

Triton 3.6 compiles a C module for each signature, into a cache that all processes share. Two that start
together, such as two ranks, build the same module, and the later one replaces the file. Python recognizes a
loaded module by the inode of its file. If the file is replaced after Python has read the inode and before it
opens the file, it remembers an inode that is free again. The next module that gets this inode is taken for
the first one, and its kernel is launched with a wrong launcher: "function takes exactly 31 arguments (38
given)". Triton 3.7 has one launcher for all kernels.
"""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from triton import knobs
from triton.backends.nvidia import driver

Build = Callable[..., Any]  # from the source of a module, which it loads


def one_at_a_time(build: Build, folder: Callable[[], Path]) -> Build:
    """Build from the same source in one process and thread at a time, with lock files in `folder()`."""

    def alone(src: str, *args: Any, **named: Any) -> Any:
        with _locked(folder() / f"{sha256(src.encode()).hexdigest()}.lock"):
            return build(src, *args, **named)

    return alone


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        yield


if hasattr(driver, "make_launcher"):  # Triton 3.6
    driver.compile_module_from_src = one_at_a_time(
        driver.compile_module_from_src, lambda: Path(knobs.cache.dir) / "launchers"
    )
