"""Compiles the kernels of a step side by side, before it is launched.

A step that compiles what it comes to does that one kernel after another, on one processor of many. So the
first step of a kind is rehearsed: it is carried out without launching a kernel, and each that is missing goes
to a thread. Most of a thread's time is Triton's compiler and the programs that it calls, and both leave the
interpreter to others.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from threading import Lock
from typing import Any

from triton import AsyncCompileMode
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

_rehearsing = ContextVar("rehearsing", default=False)
_parsing = Lock()


def precompile(launches: Callable[[], object]) -> None:
    """Calls them, and what they launch is only compiled. Tensors that kernels would fill hold anything.

    A kernel that does not compile raises what it would raise at its launch.
    """
    # In a context of its own, since Triton's mode outlives a kernel that does not compile.
    copy_context().run(_precompile, launches)


def _precompile(launches: Callable[[], object]) -> None:
    _rehearsing.set(True)
    device = driver.active.get_current_device()
    threads = len(os.sched_getaffinity(0))  # none is started before there is something to compile
    with (
        ThreadPoolExecutor(threads, "kernels", driver.active.set_current_device, (device,)) as pool,
        AsyncCompileMode(_Loading(pool)),
    ):
        launches()


class _Loading:
    """The threads as Triton sees them. What it compiles there is loaded there, too."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def submit(self, compiled: Callable[[], Any]) -> Future[Any]:
        def loaded() -> Any:
            kernel = compiled()
            kernel.run  # noqa: B018  whoever asks for it has it loaded; Triton 3.6 even calls gcc for it
            return kernel

        return self._pool.submit(loaded)


def _run(kernel: Any, *given: Any, grid: Any, warmup: bool, **named: Any) -> Any:
    return _launched(kernel, *given, grid=grid, warmup=warmup or _rehearsing.get(), **named)


# Triton compiles alone for whoever says so at the launch itself (`warmup`), and all launches come by here.
_launched, JITFunction.run = JITFunction.run, _run


def _parse(kernel: Any) -> Any:
    with _parsing:
        return _parsed(kernel)


# Python 3.11 counts for all threads together how deep its parser is. Where garbage is collected in the middle
# of it, another thread may come between, and one of the two is told of a mismatch.
_parsed, JITFunction.parse = JITFunction.parse, _parse
