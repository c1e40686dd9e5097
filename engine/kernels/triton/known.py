"""The kernels that earlier processes have used with the same configuration, as a file beside Triton's cache.

Triton finds a compiled kernel on disk only when a launch asks for it, so a start would load one after another
while it rehearses steps. With the file it loads them beside the weights. Each entry has the hash of its
kernel's source, so a changed kernel is left out, and is compiled when a step is rehearsed.

The file also names the kinds of steps whose kernels are all in it. Those are not rehearsed, unless a file of
the engine has changed: it chooses what a step launches.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from threading import Lock, Timer
from typing import Any, NamedTuple

import torch
import triton
from triton import knobs
from triton.runtime._async_compile import FutureKernel

from engine.api.config import EngineConfig
from engine.kernels.triton.keys import globals_of, key_of, take_key

_MOST = 2000  # kernels; the warm-up of a small model uses 130
_MOST_LISTS = 50  # in the folder; the oldest ones are removed
_QUIET = 1.0  # seconds without a new kernel after which the file is written
_UNRELATED = (
    "seed first_request warm policy latency_target max_slowdown kv_host host_blocks kv_disk exchange"
    " max_waiting prefix_cache chunked_prefill preemption depth meet threads"
).split()  # options that change no kernel

log = logging.getLogger("minichat.engine")


class KnownKernel(NamedTuple):
    module: str
    name: str
    source: str  # the hash of what it is compiled from
    settings: str  # the types of its arguments and so on, as Triton writes and reads them
    globals: str  # the values that the hash depends on; "" if unknown

    @property
    def function(self) -> Any:
        return getattr(import_module(self.module), self.name)

    def preload(self, unchanged: bool) -> bool:
        """Load it from Triton's cache. False: its source has changed.

        `unchanged`: no file of the engine has.
        """
        if unchanged and self.module.startswith("engine."):
            take_key(self.function, self.source, self.globals)
        if same := key_of(self.function) == self.source:
            self.function.preload(self.settings)
        return same


class KnownKernels:
    """The kernels of one configuration. Any thread may note one."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic, code: str = "") -> None:
        """`code`: a hash of what chooses the kernels of steps. "": all steps are rehearsed."""
        self._file, self._clock, self._gate, self._writing = file, clock, Lock(), Lock()
        self._kernels: dict[KnownKernel, None] = {}  # used or loaded by this process
        self._steps: dict[str, None] = {}  # whose kernels are all among them
        self._code, self._whole = code, False  # whether no kernel of the file has changed
        self._covered: frozenset[str] = frozenset()
        self._noted_at, self._waiting = 0.0, False  # when the last one was noted, and whether a timer runs

    def import_modules(self) -> None:
        """Import the modules of the file's kernels, which the engine needs anyway."""
        for module in dict.fromkeys(kernel.module for kernel in self._read()):
            with suppress(Exception):  # it has been removed, or cannot be imported; `preload` reports it
                import_module(module)

    def preload(self) -> None:
        """Load all of the file. One that cannot be loaded is left out."""
        whole, unchanged = True, self._unchanged()
        for kernel in self._read():
            try:
                whole &= kernel.preload(unchanged)
            except Exception as error:  # Triton or the engine has changed
                whole = False
                log.debug("kernel %s.%s was not loaded ahead: %s", kernel.module, kernel.name, error)
        self._whole = whole

    def covers(self, step: str) -> bool:
        """Whether all kernels of this kind of step are loaded."""
        return step in self._covered

    def note_steps(self, steps: Iterable[str]) -> None:
        """All kernels of these kinds of steps have been loaded."""
        with self._gate:
            if self._code and len(self._kernels) < _MOST:
                self._steps |= dict.fromkeys(steps)
                self._save_soon()

    def leave_out_steps(self) -> None:
        """A kernel cannot be noted, so the next process has to rehearse all steps."""
        with self._gate:
            self._code = ""
            self._steps.clear()

    def loaded(self, failed: Sequence[FutureKernel], device: int) -> None:
        """Have a launch compile what could not be loaded. Triton 3.7 would raise the same error again."""
        if self._whole and self._code and not failed:
            self._covered = frozenset(self._read_steps())
        for kernel in self._read() if failed else ():
            with suppress(Exception):  # it has no such function
                cache, *_ = kernel.function.device_caches[device]
                for key in [key for key, found in cache.items() if any(found is each for each in failed)]:
                    del cache[key]

    def note(self, *, fn: Any, compile: dict[str, Any], **rest: object) -> None:
        """Triton's hook after a kernel was compiled or found."""
        kernel = fn.jit_function
        found = KnownKernel(
            fn.module,
            kernel.fn.__qualname__,
            kernel.cache_key,
            compile["specialization_data"],
            globals_of(kernel),
        )
        with self._gate:
            if found in self._kernels or len(self._kernels) >= _MOST:
                return
            self._kernels[found] = None
            self._save_soon()

    def _save_soon(self) -> None:
        self._noted_at = self._clock()
        if not self._waiting:  # a thread for each kernel would take longer than to load it
            self._waiting = True
            self._save_after(_QUIET)

    def _save_after(self, seconds: float) -> None:
        timer = Timer(seconds, self._save_if_quiet)
        timer.daemon = True
        timer.start()

    def _save_if_quiet(self) -> None:
        with self._gate:
            left = self._noted_at + _QUIET - self._clock()
            self._waiting = left > 0
            if self._waiting:
                self._save_after(left)
        if left <= 0:
            self.save()

    def save(self) -> None:
        """Write the file if it has others."""
        with self._writing:
            with self._gate:
                kernels, steps = list(self._kernels), list(self._steps)
            if set(kernels) != set(self._read()) or set(steps) != set(self._read_steps()):
                self._write(kernels, steps)

    def _write(self, kernels: list[KnownKernel], steps: list[str]) -> None:
        part = self._file.with_suffix(f".{os.getpid()}")
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps({"kernels": kernels, "code": self._code, "steps": steps}))
            part.replace(self._file)
            lists = sorted(part.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)
            for old in lists[:-_MOST_LISTS]:
                old.unlink()
        except OSError as error:
            log.debug("the list of kernels was not written: %s", error)
            with suppress(OSError):
                part.unlink()

    def _read(self) -> list[KnownKernel]:
        try:
            found = [KnownKernel(*each) for each in self._stored()["kernels"]]
        except (KeyError, TypeError):
            return []
        return [each for each in found if all(isinstance(part, str) for part in each)]

    def _unchanged(self) -> bool:
        """Whether the process that wrote the file had the same code."""
        match self._stored():
            case {"code": self._code}:
                return bool(self._code)
        return False

    def _read_steps(self) -> list[str]:
        match self._stored():
            case {"code": self._code, "steps": [*steps]}:
                return [each for each in steps if isinstance(each, str)]
        return []

    def _stored(self) -> Any:
        try:
            return json.loads(self._file.read_text())
        except (OSError, ValueError):
            return None


def kernel_options(config: EngineConfig) -> tuple[object, ...]:
    """The options that kernels may depend on."""
    return tuple(getattr(config, each.name) for each in fields(config) if each.name not in _UNRELATED)


def known_kernels(*configuration: Hashable, code: str = "") -> KnownKernels:
    """The kernels of what has this configuration, by its representation as text. `code`: see KnownKernels."""
    name = sha256(repr((triton.__version__, *configuration)).encode()).hexdigest()
    return KnownKernels(Path(knobs.cache.dir) / "minichat" / f"{name}.json", code=code)


@cache
def engine_code() -> str:
    """A hash of the sizes and times of the engine's files, and of torch's version."""
    files = sorted(Path(__file__).parents[2].rglob("*.py"))
    stats = [(str(each), each.stat().st_size, each.stat().st_mtime_ns) for each in files]
    return sha256(repr((torch.__version__, stats)).encode()).hexdigest()
