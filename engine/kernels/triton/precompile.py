"""Compiles the kernels of a step in parallel, before its first launch.

Otherwise a step compiles its kernels one after another, on one core. So the first step of a kind is
precompiled: it runs without launching any kernel, and each missing kernel is compiled in a thread. Most of
the time is spent in Triton's compiler and in subprocesses, which both release the GIL.
"""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextvars import ContextVar, copy_context
from functools import cache
from threading import Lock
from typing import Any

from triton import AsyncCompileMode
from triton.runtime._async_compile import FutureKernel
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

_precompiling = ContextVar("precompiling", default=False)
precompiling = _precompiling.get  # whether kernels are compiled and not launched
parsing = Lock()


class CompilingKernels:
    """Kernels that compile on other threads. A launch waits for the one it needs."""

    def __init__(self, kernels: Mapping[Future[Any], FutureKernel]) -> None:
        self._kernels = kernels

    def wait(self, seconds: float | None = None) -> bool:
        """Whether all are compiled, after at most `seconds`. Raises the error of one that failed."""
        ended, others = wait(self._kernels, seconds, FIRST_EXCEPTION)
        for each in ended:
            self._kernels[each].result()
        return not others


def start_compiling(launches: Callable[[], object]) -> CompilingKernels:
    """Call `launches`, but only compile what it launches. Tensors that kernels would fill are uninitialized.

    A kernel that does not compile raises the same error as its launch would.
    """
    # In a context of its own, where Triton's mode ends without waiting.
    return copy_context().run(_start_compiling, launches)


def _start_compiling(launches: Callable[[], object]) -> CompilingKernels:
    _precompiling.set(True)
    mode = AsyncCompileMode(_Loading(_threads_for(driver.active.get_current_device()))).__enter__()
    launches()
    return CompilingKernels({each.future: each for each in mode.future_kernels.values()})


@cache
def _threads_for(device: int) -> ThreadPoolExecutor:
    """One thread for each core. They start when there is something to compile."""
    cores = len(os.sched_getaffinity(0))
    return ThreadPoolExecutor(cores, "kernels", driver.active.set_current_device, (device,))


class _Loading:
    """The executor that Triton sees. It also loads each kernel in the thread that compiled it."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def submit(self, compiled: Callable[[], Any]) -> Future[Any]:
        def loaded() -> Any:
            kernel = compiled()
            kernel.run  # noqa: B018  loads the kernel, for which Triton 3.6 even calls gcc
            return kernel

        return self._pool.submit(loaded)


def _run(kernel: Any, *given: Any, grid: Any, warmup: bool, **named: Any) -> Any:
    return triton_run(kernel, *given, grid=grid, warmup=warmup or precompiling(), **named)


# With `warmup`, Triton only compiles. All launches go through here.
triton_run, JITFunction.run = JITFunction.run, _run


def _parse(kernel: Any) -> Any:
    with parsing:
        return _parsed(kernel)


# Python 3.11 counts the parser's recursion depth across threads. If garbage collection runs inside the
# parser, another thread may interleave, and one of the two raises a mismatch error.
_parsed, JITFunction.parse = JITFunction.parse, _parse
