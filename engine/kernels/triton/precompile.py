"""Compiles the kernels of a step in parallel, before its first launch.

Otherwise a step compiles its kernels one after another, on one core. So the first step of a kind is
precompiled: it runs without launching any kernel, and each missing kernel is compiled in a thread. Most of
the time is spent in Triton's compiler and in subprocesses, which both release the GIL.
"""

import logging
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextvars import ContextVar, copy_context
from functools import cache, partial
from threading import Lock, Thread
from typing import Any, TypeVar

from triton import knobs
from triton.runtime._async_compile import FutureKernel, active_mode
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

import engine.kernels.triton.launchers  # noqa: F401  threads and processes build launchers
from engine.early import short_turns, wait_for_hash
from engine.kernels.triton.keys import give_key
from engine.kernels.triton.known import KnownKernels, engine_code, known_kernels
from engine.timeline import timed

log = logging.getLogger("minichat.engine")
T = TypeVar("T")
_made = ContextVar[dict[Hashable, Any] | None]("made", default=None)  # while kernels are compiled
_PATIENCE = 1.0  # seconds for known kernels, which may not be in Triton's cache any more
parsing = Lock()
_finalizing = Lock()
_known: list[KnownKernels] = []  # of the engine that was started last
_loading: list[Thread] = []  # load known kernels


def precompiling() -> bool:
    """Whether kernels are compiled and not launched."""
    return _made.get() is not None


def once(key: Hashable, make: Callable[[], T]) -> T:
    """Call `make`. While kernels are compiled, only for the first of the equal keys.

    The key is all that `make` depends on, apart from the contents of tensors and their addresses.
    """
    if (made := _made.get()) is None:
        return make()
    if key not in made:
        made[key] = make()
    found: T = made[key]
    return found


class CompilingKernels:
    """Kernels that compile on other threads. A launch waits for the one it needs."""

    def __init__(self, kernels: Sequence[FutureKernel], steps: Iterable[str] = ()) -> None:
        """`steps`: the kinds of steps that need them."""
        self._kernels, self._steps = kernels, steps

    def wait(self, seconds: float | None = None) -> bool:
        """Whether all are compiled, after at most `seconds`. Raises the error of one that failed."""
        ended, others = wait({each.future for each in self._kernels}, seconds, FIRST_EXCEPTION)
        for each in self._kernels:
            if each.future in ended:
                each.result()
        if not others and self._steps:
            for known in _known:
                known.note_steps(self._steps)
            self._steps = ()
        return not others

    def failed(self) -> list[FutureKernel]:
        """Wait for all. Return those that did not compile."""
        wait({each.future for each in self._kernels})
        failed = [each for each in self._kernels if each.future.exception()]
        for each in self._kernels:
            if each not in failed:
                each.result()
        return failed


def start_compiling(launches: Callable[[], object]) -> CompilingKernels:
    """Call `launches`, but only compile what it launches. Tensors that kernels would fill are uninitialized.

    A kernel that does not compile raises the same error as its launch would.
    """
    _wait_for_known()
    with timed("rehearsing steps"):
        # In a context of its own, where Triton's mode ends without waiting.
        return copy_context().run(_start_compiling, launches)


def start_steps(steps: Mapping[str, Callable[[], object]]) -> CompilingKernels:
    """The same for kinds of steps by name, except for those whose kernels the last process has noted."""
    _wait_for_known()
    missing = [launches for name, launches in steps.items() if not any(each.covers(name) for each in _known)]
    found = start_compiling(lambda: [launches() for launches in missing])._kernels if missing else ()
    return CompilingKernels(found, list(steps))


def _wait_for_known() -> None:
    if _loading:
        with timed("waiting for the known kernels"):  # both would only take turns, and a step is quicker
            for each in _loading[:]:
                each.join(_PATIENCE)
        _loading.clear()


def _start_compiling(launches: Callable[[], object]) -> CompilingKernels:
    wait_for_hash()
    _made.set({})
    mode = _CompileMode(compiler_for(driver.active.get_current_device()))
    active_mode.set(mode)
    with short_turns():
        launches()
    return CompilingKernels(mode.kernels)


def load_ahead(*configuration: Hashable, alone: bool = False) -> None:
    """Load the kernels that the last process of this configuration used, on other threads.

    From now on, note those that this process uses. `alone`: no other process needs the kernels at the same
    time, so a step may still find one that is missing.
    """
    first = alone and not _known  # others miss what the first engine has compiled
    _known[:] = [known_kernels(*configuration, code=engine_code() if first else "")]
    # Here, since two threads must not create the driver, nor import modules in different orders.
    device = driver.active.get_current_device()
    _known[0].import_modules()
    _loading.append(Thread(target=_load, args=(*_known, device), name="known kernels", daemon=True))
    _loading[-1].start()


def _load(kernels: KnownKernels, device: int) -> None:
    try:
        driver.active.set_current_device(device)
        with timed("the known kernels"):
            failed = copy_context().run(_start_compiling, kernels.preload).failed()
            kernels.loaded(failed, device)
        for each in failed:
            log.debug("a kernel was not loaded ahead: %s", each.future.exception())
    except Exception:
        log.exception("kernels were not loaded ahead; a step that needs one reports why")


class _Compiler:
    """One thread for each core; they start when there is something to compile."""

    def __init__(self, device: int) -> None:
        cores = len(os.sched_getaffinity(0))
        self._threads = ThreadPoolExecutor(cores, "kernels", driver.active.set_current_device, (device,))
        self._compiled: dict[str, Future[Any]] = {}

    def compiled(self, key: str, compile: Callable[[], Any]) -> Future[Any]:
        """Compile each kernel once, and again after an error."""
        found = self._compiled.get(key)
        if found is None or (found.done() and found.exception()):
            found = self._compiled[key] = self._threads.submit(_loaded, compile)
        return found


@cache
def compiler_for(device: int) -> _Compiler:
    return _Compiler(device)


def _loaded(compile: Callable[[], Any]) -> Any:
    kernel = compile()
    kernel.run  # noqa: B018  loads the kernel, for which Triton 3.6 even calls gcc
    return kernel


class _CompileMode:
    """Takes the place of Triton's AsyncCompileMode, which knows only the kernels of its own launches.

    Triton 3.6 finds a kernel in its cache only once the result has been taken. Until then each step of a
    warm-up would compile and load its kernels again.
    """

    def __init__(self, compiler: _Compiler) -> None:
        self._compiler = compiler
        self.kernels: list[FutureKernel] = []

    def submit(self, key: str, compile: Callable[[], Any], finalize: Callable[[Any], None]) -> FutureKernel:
        kernel = FutureKernel(partial(_finalized, finalize), self._compiler.compiled(key, compile))
        if kernel.future.done() and not kernel.future.exception():
            kernel.result()
        else:
            self.kernels.append(kernel)
        return kernel


def _finalized(finalize: Callable[[Any], None], kernel: Any) -> None:
    """Triton puts the kernel into its cache, and calls the hook."""
    with _finalizing:
        usual, knobs.runtime.jit_post_compile_hook = knobs.runtime.jit_post_compile_hook, _note
        try:
            finalize(kernel)
        except Exception as error:  # of the hook: Triton writes most kernels as text, but not all
            log.debug("a kernel was not noted: %s", error)
            for each in _known:
                each.leave_out_steps()
        finally:
            knobs.runtime.jit_post_compile_hook = usual


def _note(**found: Any) -> None:
    for each in _known:
        each.note(**found)


def _run(kernel: Any, *given: Any, grid: Any, warmup: bool, **named: Any) -> Any:
    give_key(kernel)
    return triton_run(kernel, *given, grid=grid, warmup=warmup or precompiling(), **named)


# With `warmup`, Triton only compiles. All launches go through here.
triton_run, JITFunction.run = JITFunction.run, _run


def _parse(kernel: Any) -> Any:
    with parsing:
        return _parsed(kernel)


# Python 3.11 counts the parser's recursion depth across threads. If garbage collection runs inside the
# parser, another thread may interleave, and one of the two raises a mismatch error.
_parsed, JITFunction.parse = JITFunction.parse, _parse
