"""Steps are rehearsed for a fake GPU, which records what is loaded and launched."""

import ast
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.kernels.steps.test_compiles import (
    META,
    SMALL,
    decode,
    launch,
    prompts,
    stage_of,
)
from tests.waiting import LIMIT, NotingLock

triton = pytest.importorskip("triton", reason="no Triton here")

from engine.kernels.triton import precompile as rehearsal  # noqa: E402
from engine.kernels.triton.precompile import start_compiling  # noqa: E402
from tests.kernels.steps.recording_driver import NEW, RecordingDriver, both, one, precompile, two, x  # noqa: E402

tl = triton.language


@triton.jit
def _broken(x):
    tl.store(x, tl.load(nowhere))  # noqa: F821


@pytest.mark.soak  # ten seconds; the next test has steps of both kinds in one
@pytest.mark.parametrize(
    "step", [lambda: decode(SMALL, 1, "none", "none"), lambda: prompts("none")], ids=["decode", "prompts"]
)
def test_a_step_launches_what_was_compiled(gpu: RecordingDriver, step: Callable[[], None]) -> None:
    precompile(step)
    compiled = set(gpu.missing)
    assert not gpu.launched
    assert len(gpu.loaded) >= len(compiled) > 4
    gpu.missing.clear()
    step()
    assert not gpu.missing
    assert set(gpu.launched) == compiled


@pytest.mark.parametrize(
    "narrow",
    [(0, 2, 4), (5,), *(pytest.param(each, marks=pytest.mark.soak) for each in ((), (3, 5)))],
    ids=str,
)
def test_a_rehearsal_skips_layers_like_others(gpu: RecordingDriver, narrow: tuple[int, ...]) -> None:
    """Layers of fewer heads have other kernels, and so may the layers after them."""
    (given,) = SMALL.layers
    layers = tuple(replace(given, heads=8) if index in narrow else given for index in range(6))
    config = replace(SMALL, layers=layers)

    def step() -> None:
        decode(config, 8, "none", "none")  # as in test_compiles.py: compiled once
        prompts("none", config)

    precompile(step)
    compiled = set(gpu.missing)
    assert not gpu.launched
    assert len(gpu.loaded) >= len(compiled) > 4
    gpu.missing.clear()
    step()
    assert not gpu.missing
    assert set(gpu.launched) == compiled


def test_kernels_compile_in_parallel(gpu: RecordingDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = threading.Barrier(2, timeout=30)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(triton.knobs.compilation, "listener", lambda **compiled: meeting.wait())
    precompile(both)
    assert len(gpu.loaded) == 2


def test_steps_share_the_kernels_that_are_being_compiled(
    gpu: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton 3.6 has no kernel in its cache before its result has been taken."""
    released = threading.Event()
    monkeypatch.setattr(triton.knobs.compilation, "listener", lambda **compiled: released.wait(LIMIT))

    def forgotten() -> None:
        both()
        for kernel in (one, two):
            kernel.device_caches[gpu.device][0].clear()

    steps = [start_compiling(forgotten) for _ in range(3)]
    released.set()
    assert all(step.wait() for step in steps)
    assert len(gpu.loaded) == 2
    gpu.missing.clear()
    both()
    assert not gpu.missing and gpu.launched == ["one", "two"]


def test_a_launch_waits_for_its_kernel_alone(gpu: RecordingDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def compiling(*, src: Any, **compiled: Any) -> None:
        assert src.fn.__name__ == "one" or released.wait(30)

    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(triton.knobs.compilation, "listener", compiling)
    compilation = start_compiling(both)
    one[(1,)](x())
    assert gpu.launched == ["one"]
    assert not compilation.wait(0)
    released.set()
    two[(1,)](x())
    assert compilation.wait()
    assert gpu.launched == ["one", "two"]


def test_kernels_are_parsed_one_at_a_time(gpu: RecordingDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two threads in its parser, Python 3.11 may report a mismatch that does not exist."""
    lock, parse, inside = NotingLock(), ast.parse, threading.Lock()

    def parsed(source: str) -> ast.AST:
        if not threading.current_thread().name.startswith("kernels"):
            return parse(source)
        assert inside.acquire(blocking=False), "two threads are in the parser"
        try:
            assert lock.waited.wait(LIMIT), "the other thread did not try to parse"
            return parse(source)
        finally:
            inside.release()

    monkeypatch.setattr(rehearsal, "parsing", lock)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(triton.knobs.compilation, "always_compile", True)
    monkeypatch.setattr("triton.runtime.jit.ast", SimpleNamespace(**vars(ast) | {"parse": parsed}))
    precompile(both)
    assert len(gpu.loaded) == 2


def test_a_kernel_that_does_not_compile_raises_the_usual_error(gpu: RecordingDriver) -> None:
    def launches() -> None:
        both()
        _broken[(1,)](x())

    with pytest.raises(triton.CompilationError, match="nowhere") as rehearsed:
        precompile(launches)
    with pytest.raises(triton.CompilationError) as alone:
        _broken[(1,)](x())
    assert str(rehearsed.value) == str(alone.value)
    both()  # launches work again
    assert gpu.launched == ["one", "two"]
    precompile(both)


def test_an_error_between_kernels_is_raised(gpu: RecordingDriver) -> None:
    def launches() -> None:
        both()
        raise torch.OutOfMemoryError("no memory")

    with pytest.raises(torch.OutOfMemoryError):
        precompile(launches)
    both()
    assert gpu.launched == ["one", "two"]


def test_other_threads_launch_during_a_rehearsal(gpu: RecordingDriver) -> None:
    def launches() -> None:
        other = threading.Thread(target=both, daemon=True)
        other.start()
        other.join()
        assert gpu.launched == ["one", "two"]

    precompile(launches)


def test_no_thread_starts_if_no_kernel_is_missing(
    gpu: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    both()

    def started(thread: threading.Thread) -> None:
        raise AssertionError("a thread was started")

    monkeypatch.setattr(threading.Thread, "start", started)
    precompile(both)


def test_steps_of_a_size_share_what_is_compiled(
    gpu: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need the same kernels as if each was launched alone."""
    from engine.execution.cuda import stage as stages
    from engine.models import fused

    asked: set[str] = set()
    run, runs = rehearsal.triton_run, list[int]()

    def kernels() -> set[str]:
        asked.clear()
        runs.append(0)
        gpu.device = next(NEW)  # whose kernels are all missing
        with META, torch.inference_mode():
            stage = stage_of(SMALL, "none", "none")
        steps = [partial(launch, stage, rows, filtered=filtered, cut=cut)
                 for rows in (1, 40) for filtered in (False, True) for cut in (False, True)]  # fmt: skip
        start_compiling(lambda: [step() for step in steps])
        return {*asked}

    def compiled(key: str, compile: object) -> Future[Any]:
        asked.add(key)
        return Future()

    def counted(*given: Any, **named: Any) -> Any:
        runs[-1] += 1
        return run(*given, **named)

    monkeypatch.setattr(rehearsal, "triton_run", counted)
    monkeypatch.setattr(rehearsal, "compiler_for", lambda device: SimpleNamespace(compiled=compiled))
    shared = kernels()
    for module in (stages, fused):
        monkeypatch.setattr(module, "once", lambda key, make: make())
    assert kernels() == shared
    assert runs[0] < 0.6 * runs[1]
