"""Loads the launchers of kernels so that no kernel gets that of another one.

Triton 3.6 compiles a C module for each signature, into a cache that all processes share. All of these modules
have the same name, and Python recognizes one that is loaded by the device and inode of its file. If a file
gets the inode of another one, as after a file was replaced while it was opened, Python takes the new module
for the old one, and a kernel is launched with a wrong launcher: "function takes exactly 31 arguments (38
given)". So

- each module has a name of its own here. A wrong file then lacks the function that creates the module, which
  is an ImportError, and the launcher is loaded from a copy in memory, whose inode is new;
- one process at a time builds the same launcher, so that no file is replaced.

Triton 3.7 has one launcher for all kernels.
"""

import fcntl
import importlib.util
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from triton import knobs
from triton.backends.nvidia import driver

Build = Callable[..., Any]  # from the source of a module and its name; loads it
_NAME = "__triton_launcher"

log = logging.getLogger(__name__)


def named(build: Build) -> Build:
    """Build launchers with a name of their own each."""

    def with_own_name(src: str, name: str, **options: Any) -> Any:
        if name != _NAME:
            return build(src, name, **options)
        own = f"{_NAME}_{sha256(src.encode()).hexdigest()[:16]}"
        try:
            return build(src.replace(_NAME, own), own, **options)
        except ImportError as error:
            if not error.path:
                raise
            log.warning("%s is not the launcher that its path says, so a copy is loaded", error.path)
            return loaded_from_copy(own, Path(error.path))

    return with_own_name


def loaded_from_copy(name: str, path: Path) -> ModuleType:
    """Load an extension module from a copy in memory. Its number is its path, so it remains open."""
    copy = os.memfd_create(name)
    os.write(copy, path.read_bytes())
    loader = ExtensionFileLoader(name, f"/proc/self/fd/{copy}")
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def one_at_a_time(build: Build, folder: Callable[[], Path]) -> Build:
    """Build from the same source in one process and thread at a time, with lock files in `folder()`."""

    def alone(src: str, *args: Any, **options: Any) -> Any:
        with _locked(folder() / f"{sha256(src.encode()).hexdigest()}.lock"):
            return build(src, *args, **options)

    return alone


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        yield


if hasattr(driver, "make_launcher"):  # Triton 3.6
    driver.compile_module_from_src = named(
        one_at_a_time(driver.compile_module_from_src, lambda: Path(knobs.cache.dir) / "launchers")
    )
