"""A fresh runner that replays a recording of a real model samples the same tokens."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.api.errors import BadInput, BadWire, EngineError
from engine.api.events import Delta, Transferred
from engine.api.params import SPECULATION, Grammar, SamplingParams
from engine.execution.changes import ReplaceLayer, Resize, RunnerChange, UseScheme
from engine.execution.runner import ModelRunner
from engine.scheduling.step import Step
from engine.scheduling.step_bytes import encode
from engine.serving.recordings.replay import Replayed, StepLog, replay
from tests.cases import soak
from tests.examples import examples
from tests.outputs import Output
from tests.runner.rows.test_speculation import LETTERS, always_draft
from tests.runner.small import GREEDY, Watched, ask, drain, engine_on, make, turn, turn_until

CONFIG: dict[str, Any] = {
    "max_step_tokens": 24,
    "blocks": 16,
    "host_blocks": 12,
    "preemption": "swap",
    "max_running": 8,
}
WARM = SamplingParams(temperature=0.8, max_tokens=24, ignore_eos=True)
PROMPT = [1, *range(40, 74)]  # longer than a step: it runs in chunks


def replayed(path: Path, folder: Path, **config: Any) -> list[Replayed]:
    fresh = engine_on(folder, **CONFIG | config)
    assert isinstance(fresh.runner, ModelRunner)
    return list(replay(path, fresh.runner, fresh.origin))


def assert_same(steps: list[Replayed]) -> None:
    assert steps, "nothing was recorded"
    for each in steps:
        assert each.now == each.then, f"step {each.step}"


@pytest.mark.parametrize("depth", [*soak(0), 1])
def test_every_kind_of_row(drafted: Path, tmp_path: Path, depth: int) -> None:
    engine = always_draft(engine_on(drafted, depth=depth, **CONFIG))
    path = tmp_path / "recording"
    engine.record(path)
    seen, moved = list[Any](), list[Transferred]()
    engine.bus.subscribe(lambda event: moved.append(event) if isinstance(event, Transferred) else None)
    launch = engine.runner.launch
    written: list[bytes] = []
    engine.runner.launch = lambda step: (  # type: ignore[method-assign]
        seen.append(step) or written.append(encode(step)) or launch(step)
    )

    outputs = [ask(engine, [*PROMPT, 80 + n], replace(WARM, seed=n))[1] for n in range(3)]
    id, _ = ask(engine, PROMPT, replace(WARM, seed=7, frequency_penalty=0.4, repetition_penalty=1.2))
    for _ in range(12):
        turn(engine)
    engine.update(id, temperature=0.3, frequency_penalty=1.0, logit_bias={41: 3.0})
    turn(engine)
    engine.fork(id, forked := Output(), replace(WARM, seed=8, presence_penalty=0.5))
    turn(engine)
    engine.preempt(id)
    turn(engine)
    drain(engine)
    for kind in SPECULATION:
        params = WARM.changed(speculate=kind, logit_bias=LETTERS, presence_penalty=0.2, max_tokens=16)
        outputs += [ask(engine, [*PROMPT[:9], 90 + n], replace(params, seed=n))[1] for n in range(2)]
        drain(engine)
    outputs.append(ask(engine, PROMPT, replace(WARM, grammar=Grammar("regex", "[ab]+")))[1])
    several: list[Delta] = []
    engine.submit(PROMPT[:12], GREEDY.changed(beams=3, n=2), several.append)
    engine.submit(PROMPT[:20], WARM.changed(n=3, seed=1), several.append)
    drain(engine)
    engine.stop_recording()

    assert [encode(step) for step in seen] == written, "a runner changed a step"
    assert forked.finish and not [each.error for each in (*outputs, *several) if each.error]
    assert {each.load for each in moved} == {False, True} and not [each.error for each in moved if each.error]
    assert any(step.copies for step in seen) and any(step.guided for step in seen)
    assert {each.kind for step in seen for each in step.drafts.values()} == set(SPECULATION)
    assert any(step.history for step in seen)
    assert any(each.pending for step in seen for each in step.sampling) is (depth == 1)
    assert any(row.length > 1 and not row.samples for step in seen for row in step.rows), (
        "no prompt was chunked"
    )
    steps = replayed(path, drafted)
    assert_same(steps)
    assert len(steps) == len(seen)
    assert any(each.then.runs for each in steps) and any(each.then.likeliest for each in steps)


def test_rows_with_evicted_tokens(llama: Path, tmp_path: Path) -> None:
    evicts: dict[str, Any] = {"kv_budget": 80, "host_blocks": 0}
    engine = engine_on(llama, depth=1, **CONFIG | evicts)
    path, prompt = tmp_path / "recording", [1, *(40 + n * 7 % 150 for n in range(119))]
    engine.record(path)
    seen, launch = list[Step](), engine.runner.launch
    engine.runner.launch = lambda step: seen.append(step) or launch(step)  # type: ignore[method-assign]
    outputs = [ask(engine, [*prompt, 80 + n], replace(WARM, seed=n))[1] for n in range(2)]
    drain(engine)
    engine.stop_recording()
    assert not [each.error for each in outputs if each.error]
    assert any(step.rows.skipped.any() for step in seen), "nothing was evicted"
    steps = replayed(path, llama, **evicts)
    assert_same(steps)
    assert len(steps) == len(seen)


@pytest.mark.parametrize("depth", [*soak(0), 1])
def test_steps_that_fail_and_run_out_of_memory(llama: Path, tmp_path: Path, depth: int) -> None:
    engine = engine_on(llama, depth=depth, **CONFIG)
    assert isinstance(engine.runner, ModelRunner)
    calls = count()

    def fails(ids: torch.Tensor) -> None:
        match next(calls):
            case 5:
                raise RuntimeError("simulated failure")
            case 9 | 10:
                raise torch.OutOfMemoryError("no memory")

    engine.runner.model = Watched(engine.runner.model, fails)  # type: ignore[assignment]
    path = tmp_path / "recording"
    engine.record(path)
    params = WARM.changed(frequency_penalty=0.5)
    outputs = [ask(engine, PROMPT[: 9 + n], replace(params, seed=n))[1] for n in range(3)]
    for _ in range(7):
        turn(engine)
    outputs += [ask(engine, PROMPT[: 19 + n], replace(params, seed=n))[1] for n in range(3)]
    drain(engine)
    engine.stop_recording()
    assert {bool(each.error) for each in outputs} == {True, False}
    assert_same(replayed(path, llama))


def test_weights_and_switches_that_change(llama: Path, tmp_path: Path) -> None:
    """The model has rows of 64 bytes, as the schemes require."""
    folder = tmp_path / "model"
    folder.mkdir()
    make("qwen3", folder)
    engine = engine_on(folder, **CONFIG)
    path = tmp_path / "recording"
    engine.record(path)
    outputs = [ask(engine, PROMPT, replace(WARM, seed=n))[1] for n in range(3)]
    for scheme in ("int8", "none"):
        for _ in range(6):
            turn(engine)
        engine.set_quantization(scheme)
        turn_until(engine, lambda: engine.change is None or engine.change.over)
    drain(engine)
    engine.set_kv_scheme("int8")
    outputs.append(ask(engine, PROMPT, WARM)[1])
    drain(engine)
    engine.stop_recording()
    assert not [each.error for each in outputs if each.error]
    assert b"ReplaceLayer" in path.read_bytes() and b"Recache" in path.read_bytes()
    assert_same(replayed(path, folder))


def test_a_recording_may_end_in_the_middle_of_a_change(tmp_path: Path) -> None:
    """The rest of the change goes to the runner itself, and not to the file, which is closed."""
    folder = tmp_path / "model"
    folder.mkdir()
    make("qwen3", folder)
    engine, path = engine_on(folder, **CONFIG), tmp_path / "recording"
    engine.record(path)
    engine.set_quantization("int8")
    for _ in range(2):  # the first turn makes room, the second replaces a layer
        turn(engine)
    engine.stop_recording()
    while engine.change is not None:
        turn(engine)
    assert engine.snapshot().quantization == "int8"
    assert path.read_bytes().count(b"ReplaceLayer") == 1 and b"UseScheme" not in path.read_bytes()
    ask(engine, PROMPT)
    drain(engine)


def test_a_recording_begins_with_an_idle_engine_and_only_once(llama: Path, tmp_path: Path) -> None:
    engine = engine_on(llama)
    ask(engine, PROMPT)
    turn(engine)
    with pytest.raises(BadInput, match="needs an idle engine; wait for 1"):
        engine.record(tmp_path / "one")
    drain(engine)
    engine.record(tmp_path / "two")
    with pytest.raises(BadInput, match="already being recorded"):
        engine.record(tmp_path / "three")
    runner = engine.runner
    engine.stop_recording()
    engine.stop_recording()
    assert engine.runner is not runner and isinstance(engine.runner, ModelRunner)
    with pytest.raises(FileExistsError):
        engine.record(tmp_path / "two")


@pytest.fixture(scope="module")
def short_recording(
    checkpoint: Callable[[str], tuple[Path, Any]], tmp_path_factory: pytest.TempPathFactory
) -> bytes:
    engine = engine_on(checkpoint("llama")[0], **CONFIG)
    path = tmp_path_factory.mktemp("short") / "recording"
    engine.record(path)
    ask(engine, PROMPT, replace(WARM, seed=1, grammar=Grammar("regex", "[ab]+"), max_tokens=4))
    drain(engine)
    engine.stop_recording()
    return path.read_bytes()


@examples(15)
@given(data=st.data())
def test_a_broken_file_is_refused(
    llama: Path, short_recording: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A corrupt file may also decode to a valid recording, whose values are within bounds."""
    at = data.draw(st.integers(0, len(short_recording) - 1))
    middle = data.draw(st.binary(min_size=1, max_size=6))
    path = tmp_path_factory.mktemp("broken") / "recording"
    cut, flipped = short_recording[:at], short_recording[:at] + middle + short_recording[at + len(middle) :]
    path.write_bytes(data.draw(st.sampled_from([cut, flipped])))
    with suppress(EngineError):
        replayed(path, llama)


@pytest.mark.parametrize(
    "change",
    [
        Resize(-5, ()), Resize(0, ()), Resize(16, (16,)), Resize(16, (-1,)), Resize(8, (8,)),
        Resize(40, (16,)), Resize(2**31, ()),
        ReplaceLayer(-1, "int8"), ReplaceLayer(10**6, "int8"), ReplaceLayer(0, "int9"), UseScheme("int9"),
    ],
    ids=str,
)  # fmt: skip
def test_a_change_outside_its_bounds_is_refused(
    llama: Path, short_recording: bytes, tmp_path: Path, change: RunnerChange
) -> None:
    path = tmp_path / "recording"
    log = StepLog(path, engine_on(llama, **CONFIG).origin)
    log.change(change)
    log.close()
    path.write_bytes(path.read_bytes() + short_recording[path.stat().st_size :])
    with pytest.raises(BadWire, match="a change that this runner refuses"):
        replayed(path, llama)


def test_a_change_without_memory_for_it_is_refused(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def zeros(*_: object) -> torch.Tensor:
        raise MemoryError("Unable to allocate 1.86 TiB")

    path, engine = tmp_path / "recording", engine_on(llama, **CONFIG)
    assert isinstance(engine.runner, ModelRunner)
    log = StepLog(path, engine.origin)
    log.change(Resize(40, ()))
    log.close()
    monkeypatch.setattr("engine.kv.store.zeros", zeros)
    with pytest.raises(BadWire, match=r"refuses: Unable to allocate 1\.86 TiB"):
        list(replay(path, engine.runner, engine.origin))


def test_the_recording_of_another_engine_is_refused(
    llama: Path, short_recording: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "recording"
    path.write_bytes(short_recording)
    with pytest.raises(BadWire, match="starts with"):
        replayed(path, llama, blocks=17)
    path.write_bytes(b"what is this")
    with pytest.raises(BadWire, match="not an engine recording"):
        replayed(path, llama)
