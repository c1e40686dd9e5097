"""Kernels that an earlier process used are loaded before a step asks for them. No GPU is needed."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton", reason="no Triton here")

from triton import knobs
from triton.runtime.jit import JITFunction

from engine.api.config import EngineConfig
from engine.kernels.triton import keys
from engine.kernels.triton import precompile as rehearsal
from engine.kernels.triton.known import KnownKernel, KnownKernels, engine_code, kernel_options, known_kernels
from engine.kernels.triton.precompile import load_ahead, start_compiling, start_steps
from tests.kernels.steps.recording_driver import NEW, RecordingDriver, both, one, precompile, x
from tests.kernels.steps.test_compiles import SMALL, decode, prompts
from tests.models.tiny import write_config
from tests.waiting import LIMIT, becomes

WARM_UP = """
import sys
from triton import knobs
from engine.api.config import EngineConfig
from engine.kernels.triton import precompile
from engine.serving.warm_up import WarmUp
from engine.start import start

small = {"blocks": 64, "max_context": 128, "max_running": 4}
engine = start(EngineConfig(model=sys.argv[1], device="cuda", dummy_weights=True, **small))
for thread in precompile._loading:
    thread.join()
missing = []
knobs.runtime.jit_cache_hook = lambda *, fn, **rest: missing.append(fn.name)
warm_up = WarmUp(engine, engine.runner.graph_sizes)
while not warm_up.over:
    warm_up.step()
precompile._known[0].save()
print(len(missing), len(precompile._known[0]._covered))
engine.die("measured")
engine.close()
"""
Changed = Callable[[list[Any]], object]


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The list of kernels. Triton's cache is the usual one."""
    file = tmp_path / "kernels.json"
    monkeypatch.setattr(rehearsal, "known_kernels", lambda name, code: KnownKernels(file, code=code))
    monkeypatch.setattr(rehearsal, "engine_code", lambda: "unchanged")
    monkeypatch.setattr(rehearsal, "_PATIENCE", LIMIT)  # on a loaded machine
    yield file
    rehearsal._known.clear()


def known() -> KnownKernels:
    (found,) = rehearsal._known
    return found


def restart(gpu: RecordingDriver) -> set[str]:
    """Begin like a new process: the GPU has no kernels. Return those that are loaded ahead."""
    gpu.device = next(NEW)
    gpu.loaded.clear()
    rehearsal._known.clear()
    load_ahead("a model", alone=True)
    start_compiling(lambda: None).wait()  # waits for them
    gpu.missing.clear()
    return {*gpu.loaded}


def stored(file: Path) -> list[Any]:
    kernels: list[Any] = json.loads(file.read_text())["kernels"]
    return kernels


def used_once(gpu: RecordingDriver, step: Callable[[], None] = both) -> None:
    assert restart(gpu) == set()
    precompile(step)
    known().save()


def test_kernels_of_the_last_process_are_loaded_ahead(gpu: RecordingDriver) -> None:
    used_once(gpu)
    assert restart(gpu) == {"one", "two"}
    precompile(both)
    both()
    assert (gpu.missing, sorted(gpu.loaded), gpu.launched) == ([], ["one", "two"], ["one", "two"])


@pytest.mark.parametrize(
    "step", [lambda: decode(SMALL, 1, "none", "none"), lambda: prompts("none")], ids=["decode", "prompts"]
)
def test_every_kernel_of_a_step_is_known(
    gpu: RecordingDriver, step: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton also finds it compiled: what its entry says leads to the same file."""
    used_once(gpu, step)
    needed, compiled = {*gpu.loaded}, list[bool]()
    monkeypatch.setattr(
        knobs.compilation, "listener", lambda *, cache_hit, **rest: compiled.append(not cache_hit)
    )
    assert restart(gpu) == needed
    step()
    assert not gpu.missing
    assert not any(compiled)


@pytest.mark.parametrize("changed", [False, True])
def test_keys_are_computed_only_if_a_file_of_the_engine_has_changed(
    gpu: RecordingDriver, file: Path, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    used_once(gpu, lambda: decode(SMALL, 1, "none", "none"))
    needed, computed = {*gpu.loaded}, set[str]()
    for kernel in [KnownKernel(*each) for each in stored(file)]:
        monkeypatch.setattr(kernel.function, "hash", None)
        monkeypatch.setattr(kernel.function, "used_global_vals", {})
        monkeypatch.delitem(keys._keyed, id(kernel.function), raising=False)
    monkeypatch.setattr(JITFunction, "parse", noting(JITFunction.parse, computed))
    if changed:
        monkeypatch.setattr(rehearsal, "engine_code", lambda: "changed")
    assert restart(gpu) == needed
    assert bool(computed) is changed
    decode(SMALL, 1, "none", "none")
    assert not gpu.missing


def noting(parse: Callable[[Any], Any], into: set[str]) -> Callable[[Any], Any]:
    return lambda kernel: into.add(kernel.__name__) or parse(kernel)


def test_a_kernel_used_later_is_added(gpu: RecordingDriver) -> None:
    used_once(gpu, lambda: one[(1,)](x()))
    assert restart(gpu) == {"one"}
    precompile(both)
    known().save()
    assert restart(gpu) == {"one", "two"}


def test_the_file_is_written_once_no_kernel_is_new(
    gpu: RecordingDriver, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.kernels.triton.known._QUIET", 0.0)
    assert restart(gpu) == set()
    precompile(both)
    assert becomes(lambda: file.exists() and len(stored(file)) == 2)


def test_one_thread_waits_for_the_last_kernel(
    gpu: RecordingDriver, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread for each kernel takes longer than to load it."""
    timers: list[threading.Timer] = []

    class Counted(threading.Timer):
        def start(self) -> None:
            timers.append(self)

    monkeypatch.setattr("engine.kernels.triton.known.Timer", Counted)
    now = 10.0
    kernels = KnownKernels(file, lambda: now)

    def noted(name: str) -> None:
        function = SimpleNamespace(__qualname__=name)
        kernel = SimpleNamespace(fn=function, cache_key="", used_global_vals={})
        kernels.note(fn=SimpleNamespace(module="", jit_function=kernel), compile={"specialization_data": ""})

    noted("one")
    now = 10.9
    noted("two")
    (first,) = timers
    now = 11.0
    first.function()
    assert not file.exists(), "the second one came 0.1 s before"
    _, second = timers
    assert second.interval == pytest.approx(0.9)
    now = 12.0
    second.function()
    assert len(stored(file)) == 2
    noted("three")
    assert len(timers) == 3


def test_modules_are_imported_on_the_thread_that_starts_the_engine(
    gpu: RecordingDriver, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that import modules in different orders may find one that is not complete."""
    (file.parent / "its_module.py").write_text("import threading\nthread = threading.current_thread()")
    file.write_text(json.dumps({"kernels": [["its_module", "kernel", "", "", ""]]}))
    monkeypatch.syspath_prepend(file.parent)
    assert restart(gpu) == set()
    assert sys.modules.pop("its_module").thread is threading.main_thread()


def test_another_configuration_has_others() -> None:
    files = {known_kernels(*each)._file for each in [("a", 1), ("a", 2), ("b", 1)]}
    assert len(files) == 3


def test_the_oldest_lists_are_removed(gpu: RecordingDriver, file: Path) -> None:
    for number in range(60):
        old = file.with_name(f"{number}.json")
        old.touch()
        os.utime(old, (number, number))
    used_once(gpu)
    left = {each.stem for each in file.parent.iterdir()}
    assert left == {file.stem, *map(str, range(11, 60))}


@pytest.mark.cuda
def test_a_second_engine_looks_for_no_kernel(tmp_path: Path) -> None:
    """Each in a process of its own. All kernels of the warm-up are there before it begins, without a
    rehearsal."""
    write_config(tmp_path)
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    given = [sys.executable, "-c", WARM_UP, str(tmp_path)]
    found = [subprocess.check_output(given, env=environment, text=True).split() for _ in range(2)]
    (missing, covered), (later_missing, later_covered) = (map(int, each) for each in found)
    assert missing > 5 and not covered
    assert later_covered > 5 and not later_missing


@pytest.mark.parametrize(
    ("change", "loaded"),
    [
        (lambda kernels: kernels[0].__setitem__(2, "of other source"), 1),
        (lambda kernels: kernels[0].__setitem__(0, "no.such.module"), 1),
        (lambda kernels: kernels[0].__setitem__(1, "no_such_kernel"), 1),
        (lambda kernels: kernels[0].__setitem__(3, "{}"), 1),
        (lambda kernels: kernels[0].__setitem__(3, kernels[0][3].replace('"*fp32"', '"*fp99"')), 1),
        (lambda kernels: kernels[0].__setitem__(0, ["a", "list"]), 1),
        (lambda kernels: kernels[0].pop(), 0),
        (lambda kernels: kernels.clear(), 0),
    ],
)
def test_what_has_changed_is_compiled_at_its_launch(
    gpu: RecordingDriver, file: Path, change: Changed, loaded: int
) -> None:
    used_once(gpu)
    kernels = stored(file)
    change(kernels)
    file.write_text(json.dumps({"kernels": kernels}))
    assert len(restart(gpu)) == loaded
    both()
    assert gpu.launched == ["one", "two"]
    assert len(gpu.missing) == 2 - loaded


def test_options_that_change_no_kernel_share_a_list() -> None:
    plain = EngineConfig(model="m", blocks=64)
    served = replace(plain, warm=True, seed=5, policy="latency", max_waiting=9, kv_host=1.0, depth=1)
    assert kernel_options(plain) == kernel_options(served)
    for other in ({"kv_scheme": "int8"}, {"max_running": 8}, {"quantization": "int4"}, {"block_size": 32}):
        assert kernel_options(replace(plain, **other)) != kernel_options(plain)


def steps_of_a_start(gpu: RecordingDriver, *names: str, save: bool = True) -> list[str]:
    """Return those that are rehearsed."""
    restart(gpu)
    rehearsed = list[str]()

    def launch(name: str) -> None:
        rehearsed.append(name)
        both()

    assert start_steps({name: partial(launch, name) for name in names}).wait()
    gpu.missing.clear()
    both()
    assert not gpu.missing
    if save:
        known().save()
    return rehearsed


def test_steps_of_the_last_process_are_not_rehearsed(gpu: RecordingDriver) -> None:
    assert steps_of_a_start(gpu, "a", "b") == ["a", "b"]
    assert steps_of_a_start(gpu, "b", "c") == ["c"]
    assert steps_of_a_start(gpu, "a", "b", "c") == ["a"], "the last process had no such step"


def test_steps_are_rehearsed_if_the_engine_has_changed(
    gpu: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert steps_of_a_start(gpu, "a") == ["a"]
    monkeypatch.setattr(rehearsal, "engine_code", lambda: "changed")
    assert steps_of_a_start(gpu, "a") == ["a"]
    assert steps_of_a_start(gpu, "a") == []


@pytest.mark.parametrize("alone", [False, True])
def test_steps_of_ranks_and_of_later_engines_of_a_process_are_rehearsed(
    gpu: RecordingDriver, alone: bool
) -> None:
    """A rank that compiled beside an exchange would let the others wait; what an engine has is not noted
    again for the next one."""
    assert steps_of_a_start(gpu, "a") == ["a"]
    load_ahead("a model", alone=alone)
    assert steps_of_a_start(gpu, "a") == []
    load_ahead("a model", alone=alone)
    rehearsed = list[str]()
    start_steps({"a": lambda: rehearsed.append("a")}).wait()
    assert rehearsed == ["a"]


def test_steps_are_rehearsed_if_a_kernel_could_not_be_loaded(gpu: RecordingDriver, file: Path) -> None:
    assert steps_of_a_start(gpu, "a") == ["a"]
    found = json.loads(file.read_text())
    found["kernels"][0][2] = "of other source"
    file.write_text(json.dumps(found))
    assert steps_of_a_start(gpu, "a") == ["a"]
    assert steps_of_a_start(gpu, "a") == []


def test_a_step_is_noted_once_its_kernels_are_loaded(gpu: RecordingDriver, file: Path) -> None:
    restart(gpu)
    found = start_steps({"a": both})
    known().save()
    assert not file.exists() or json.loads(file.read_text())["steps"] == []
    assert found.wait()
    known().save()
    assert json.loads(file.read_text())["steps"] == ["a"]


def test_no_step_is_noted_if_a_kernel_cannot_be(
    gpu: RecordingDriver, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(self: KnownKernels, **found: Any) -> None:
        raise ValueError("it has no text")

    with monkeypatch.context() as process:
        process.setattr(KnownKernels, "note", note)
        assert steps_of_a_start(gpu, "a") == ["a"]
    assert not file.exists() or json.loads(file.read_text())["steps"] == []


def test_the_code_of_the_engine_is_that_of_its_files() -> None:
    assert engine_code() == engine_code() and len(engine_code()) == 64


def test_a_folder_that_cannot_be_written_is_no_problem(gpu: RecordingDriver, file: Path) -> None:
    file.mkdir()
    used_once(gpu)
    assert restart(gpu) == set()
    assert [*file.parent.iterdir()] == [file]
