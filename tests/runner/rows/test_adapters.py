"""Rows with LoRA adapters beside others: each gets the reply that the merged weights give it alone."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from engine.api.errors import BadInput, UnknownAdapter
from engine.api.events import AdapterChanged
from engine.api.params import SamplingParams
from engine.models.adapters.settings import WEIGHTS
from engine.serving.engine import Engine
from engine.serving.recordings.replay import replay
from tests.cases import soak
from tests.examples import examples
from tests.models.lora import merge, random_adapter
from tests.outputs import Output
from tests.runner.graphs.plain_stage import staged
from tests.runner.small import GREEDY, alone, close_to, drain, engine_on, run_to, turn, turn_until

PROMPT = (1, *range(60, 97))
LOGPROBS = GREEDY.changed(logprobs=3)


@dataclass(frozen=True)
class Adapters:
    """A base model, two adapters, and for each the folder of the merged weights; "" is the base itself."""

    base: Path
    folders: dict[str, Path]
    merged: dict[str, Path]

    def engine(self, **config: Any) -> Engine:
        return engine_on(
            self.base, adapters=tuple(f"{name}={path}" for name, path in self.folders.items()), **config
        )


@pytest.fixture(scope="module")
def world(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Adapters:
    folder = tmp_path_factory.mktemp("adapters")
    base = folder / "base"  # with an exit after its first layer
    shutil.copytree(llama, base)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"early_exit_layers": [1]}))
    folders = {
        "a": random_adapter(folder / "a", base),
        "b": random_adapter(
            folder / "b", base, seed=1, r=6, lora_alpha=9, target_modules=["q_proj", "up_proj"]
        ),
    }
    merged = {
        "": base,
        "a": merge(base, folders["a"], 2.0, folder / "merged-a"),
        "b": merge(base, folders["b"], 1.5, folder / "merged-b"),
    }
    return Adapters(base, folders, merged)


def submit(
    engine: Engine, adapter: str, prompt: tuple[int, ...] = PROMPT, params: SamplingParams = LOGPROBS
) -> Output:
    output = Output()
    engine.submit(prompt, params, output, adapter=adapter)
    return output


def test_two_adapters_and_none_in_one_batch(world: Adapters) -> None:
    """The same prompt, so that a block of one would be wrong for another."""
    engine = world.engine()
    outputs = {name: submit(engine, name) for name in world.merged}
    drain(engine)
    replies = {name: alone(folder, PROMPT, LOGPROBS) for name, folder in world.merged.items()}
    for name, output in outputs.items():
        assert output.tokens == replies[name].tokens
        assert close_to(output.logprobs, replies[name].logprobs)
    assert len({tuple(each.tokens) for each in replies.values()}) == 3
    assert engine.scheduler.cached_tokens == 0
    again = submit(engine, "a")
    drain(engine)
    assert again.tokens == replies["a"].tokens and engine.scheduler.cached_tokens == 32


@dataclass(frozen=True)
class Job:
    adapter: str
    prompt: tuple[int, ...]
    params: SamplingParams
    at: int
    preempt_after: int | None
    fork_after: int | None


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    shared, own = draw(st.sampled_from([0, 16, 33])), draw(st.integers(1, 20))
    after = st.one_of(st.none(), st.integers(1, 12))
    kind = draw(st.sampled_from(["greedy", "greedy", "seeded", "beams", "samples", "ngram", "exit"]))
    params = {
        "greedy": SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True),
        "seeded": SamplingParams(seed=draw(st.integers(0, 3)), max_tokens=12, ignore_eos=True),
        "beams": SamplingParams(beams=2, max_tokens=8, ignore_eos=True),
        "samples": SamplingParams(best_of=2, seed=1, max_tokens=8, ignore_eos=True),
        "ngram": SamplingParams(temperature=0.0, speculate="ngram", draft_tokens=3, max_tokens=12),
        "exit": SamplingParams(temperature=0.0, speculate="exit", draft_tokens=2, max_tokens=12),
    }[kind]
    return Job(
        adapter=draw(st.sampled_from(["", "a", "b"])),
        prompt=(1, *range(60, 60 + shared), *range(200 - own, 200)),
        params=params,
        at=draw(st.integers(0, 6)),
        preempt_after=draw(after),
        fork_after=draw(after) if kind in ("greedy", "ngram") else None,
    )


@examples(3)
@given(
    work=st.lists(jobs(), min_size=2, max_size=5),
    config=st.fixed_dictionaries(
        {
            "depth": st.integers(0, 1),
            "max_step_tokens": st.sampled_from([8, 20, 200]),
            "preemption": st.sampled_from(["recompute", "swap"]),
            "prefix_cache": st.booleans(),
        }
    ),
)
def test_other_requests_do_not_change_a_reply(
    world: Adapters, work: list[Job], config: dict[str, Any]
) -> None:
    engine = world.engine(blocks=8, host_blocks=8, max_running=6, **config)
    ids: dict[int, Job] = {}
    replies: list[tuple[Job, Output]] = []
    for step in range(20):
        for job in work:
            if job.at == step:
                replies.append((job, output := Output()))
                ids[engine.submit(job.prompt, job.params, output, adapter=job.adapter)] = job
        for id, job in ids.items():
            if id not in engine.scheduler.requests:
                continue
            if step - job.at == job.preempt_after:
                engine.preempt(id)
            if step - job.at == job.fork_after:
                before = engine.scheduler.requests[id].generated
                replies.append((job, branch := Output()))
                branch.tokens += replies[[mine for mine, _ in replies].index(job)][1].tokens[:before]
                engine.fork(id, branch)
        turn(engine)
    drain(engine)
    for job, output in replies:
        expected = alone(world.merged[job.adapter], job.prompt, job.params)
        assert output.tokens == expected.tokens


def test_what_adapters_read_and_compute_is_counted(world: Adapters) -> None:
    """Each adapter of a step once, and its matrices, as they are in its file, with each of its tokens."""
    engine, numbers = world.engine(), {}
    for name, folder in world.folders.items():
        numbers[name] = sum(each.numel() for each in load_file(folder / WEIGHTS).values())
    sizes = {view.name: view.nbytes for view in engine.snapshot().adapters}
    assert sum(sizes.values()) == engine.snapshot().memory["adapters"]
    submit(engine, "")
    engine.step()
    assert (engine.snapshot().rates.adapters, engine.snapshot().rates.adapted) == (0, 0)
    engine = world.engine()
    names = ("a", "a", "b", "")
    outputs = [submit(engine, name) for name in names]
    engine.step()
    rates, tokens = engine.snapshot().rates, len(PROMPT)
    assert rates.step_tokens == len(names) * tokens
    assert rates.adapters == sum(sizes.values())
    assert rates.adapted == 2 * tokens * (2 * numbers["a"] + numbers["b"])
    run_to(engine, outputs[0], 2)
    after = engine.snapshot().rates
    assert after.adapters == sum(sizes.values()), "decode steps read them, too"
    assert after.adapted == (tokens + 1) * rates.adapted / tokens / 2


def test_adapters_are_loaded_and_dropped_while_requests_run(world: Adapters) -> None:
    engine, seen = engine_on(world.base), []
    engine.bus.subscribe(lambda event: seen.append(event) if isinstance(event, AdapterChanged) else None)
    plain = submit(engine, "")
    run_to(engine, plain, 3)
    engine.load_adapter("a", world.folders["a"])
    adapted = submit(engine, "a")
    run_to(engine, adapted, 3)
    [view] = engine.snapshot().adapters
    assert (view.name, view.rank, view.source, view.requests) == ("a", 4, "a", 1)
    assert engine.snapshot().memory["adapters"] == view.nbytes > 0
    with pytest.raises(BadInput, match="'a' is used by a request; wait for it, or end it"):
        engine.drop_adapter("a")
    drain(engine)
    assert plain.tokens == alone(world.base, PROMPT, LOGPROBS).tokens
    assert adapted.tokens == alone(world.merged["a"], PROMPT, LOGPROBS).tokens
    engine.drop_adapter("a")
    after = engine.snapshot()
    assert after.adapters == () and "adapters" not in after.memory and engine.runner.adapters.nbytes == 0
    assert [(each.name, each.loaded) for each in seen] == [("a", True), ("a", False)]
    with pytest.raises(UnknownAdapter, match="no adapter 'a' is loaded; load it, or choose none"):
        submit(engine, "a")
    for name in ("a", ""):
        with pytest.raises(UnknownAdapter, match=f"no adapter '{name}' is loaded$"):
            engine.drop_adapter(name)


@pytest.mark.parametrize("depth", [*soak(0), 1])
def test_a_step_with_adapters_has_a_graph_of_its_own(world: Adapters, depth: int) -> None:
    """Each row finds its adapter in the buffers of the step, and steps without any have none there."""
    engine = world.engine(depth=depth)
    stage, plain = staged(engine), submit(engine, "")
    run_to(engine, plain, 6)
    replayed = len(stage.sizes)
    assert replayed > 0 and not stage.adapted
    adapted = {name: submit(engine, name, params=LOGPROBS.changed(max_tokens=5)) for name in "ab"}
    turn_until(engine, lambda: all(each.finish for each in adapted.values()))
    with_adapters = len(stage.adapted)
    assert with_adapters >= 5 and len(stage.sizes) + len(stage.pieces) >= replayed + with_adapters
    drain(engine)
    assert len(stage.adapted) == with_adapters, "the last steps have no adapter"
    assert plain.tokens == alone(world.base, PROMPT, LOGPROBS).tokens
    for name, output in adapted.items():
        expected = alone(world.merged[name], PROMPT, LOGPROBS)
        assert output.tokens == expected.tokens[:5]
        assert close_to(output.logprobs, expected.logprobs[:5])


@pytest.mark.parametrize("depth", [*soak(0), 1])
def test_without_kernels_a_step_with_an_adapter_runs_outside_the_graphs(world: Adapters, depth: int) -> None:
    """Other steps, before and after it, are replayed."""
    engine = world.engine(depth=depth)
    stage, plain = staged(engine), submit(engine, "")
    stage.adapters = None
    run_to(engine, plain, 6)
    replayed = len(stage.sizes)
    adapted = submit(engine, "a", params=LOGPROBS.changed(max_tokens=5))
    turn_until(engine, lambda: adapted.finish)
    between = len(stage.sizes)
    drain(engine)
    assert replayed > 0 and between <= replayed + depth and len(stage.sizes) > between + 5
    assert len(stage.pieces) == 1, "only the prompt without an adapter"
    assert plain.tokens == alone(world.base, PROMPT, LOGPROBS).tokens
    assert adapted.tokens == alone(world.merged["a"], PROMPT, LOGPROBS).tokens[:5]


def test_another_adapter_under_the_same_name_finds_no_blocks_of_the_first(world: Adapters) -> None:
    engine = engine_on(world.base)
    for name in ("a", "b"):
        engine.load_adapter("mine", world.folders[name])
        output = submit(engine, "mine")
        drain(engine)
        assert output.tokens == alone(world.merged[name], PROMPT, LOGPROBS).tokens
        engine.drop_adapter("mine")
    assert engine.scheduler.cached_tokens == 0
    engine.load_adapter("the-same-named-again", world.folders["a"])
    output = submit(engine, "the-same-named-again")
    drain(engine)
    assert engine.scheduler.cached_tokens == 32


def test_names_that_cannot_be_given(world: Adapters) -> None:
    engine = world.engine()
    for name, problem in (
        ("a", "already loaded"),
        ("x y", "cannot be the name"),
        (world.base.name, "is the model"),
    ):
        with pytest.raises(BadInput, match=problem):
            engine.load_adapter(name, world.folders["a"])
    with pytest.raises(
        UnknownAdapter, match="no adapter 'z' is loaded; load it, or choose one of a, b, or none"
    ) as unknown:
        submit(engine, "z")
    assert unknown.value.field == "adapter"
    assert not engine.scheduler.requests


def test_the_weights_change_under_an_adapter(world: Adapters) -> None:
    """It stays loaded, and is added to the new products."""
    engine, fresh = world.engine(), world.engine(quantization="int8")
    engine.set_quantization("int8")
    drain(engine)
    outputs = [submit(each, "a") for each in (engine, fresh)]
    for each in (engine, fresh):
        drain(each)
    assert outputs[0].tokens == outputs[1].tokens
    assert outputs[0].tokens != alone(world.base, PROMPT, LOGPROBS).tokens


def test_a_recording_holds_the_adapters(world: Adapters, tmp_path: Path) -> None:
    engine = engine_on(world.base)
    engine.load_adapter("a", world.folders["a"])
    origin = engine.origin
    engine.record(tmp_path / "steps")
    first = submit(engine, "a")
    run_to(engine, first, 3)
    engine.load_adapter("b", world.folders["b"])
    submit(engine, "b")
    drain(engine)
    engine.stop_recording()
    again = list(replay(tmp_path / "steps", engine_on(world.base).runner, origin))
    assert again and all(each.then == each.now for each in again)
