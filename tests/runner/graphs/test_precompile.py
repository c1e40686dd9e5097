"""The first step of each kind outside of graphs is rehearsed. No GPU is needed."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.attention.base import Batch
from engine.attention.torch_backend import TorchAttention
from engine.execution.cuda.arrivals import Wait
from engine.execution.protocol import RARE, Compilation, StepKind
from engine.execution.results import SampledTokens
from engine.execution.runner import ModelRunner
from engine.execution.sampling_state import SamplingState
from engine.models.adapters.products import StepAdapters
from engine.serving.engine import Engine
from tests.outputs import Outputs
from tests.runner.graphs.observing import observing
from tests.runner.graphs.plain_stage import PlainStage
from tests.runner.small import GREEDY, alone, ask, drain, engine_on

PROMPT = [1, *range(60, 100)]


class Done:
    def wait(self, seconds: float | None = None) -> bool:
        return True


class Stage:
    """The model's own forward and greedy sampling. A rehearsal runs the step like any other here."""

    compilations = 0

    def __init__(self, runner: ModelRunner) -> None:
        self.runner, self.attention = runner, TorchAttention()
        self.forwards: list[int] = []  # the number of tokens of each
        self.rehearsed: list[int] = []
        self.problem = ""

    def start_compiling(self, steps: Mapping[Hashable, Callable[[], object]]) -> "Done":
        self.compilations += 1
        if self.problem:
            raise RuntimeError(self.problem)
        before = len(self.forwards)
        for launches in steps.values():
            launches()
        self.rehearsed += self.forwards[before:]
        del self.forwards[before:]
        return Done()

    def forward(
        self,
        batch: Batch,
        adapters: StepAdapters | None = None,
        stream: Tensor | None = None,
        wait: Wait = None,
    ) -> Tensor:
        self.forwards.append(len(batch.ids))
        prepared, layers = self.attention.prepare(batch), self.runner.store.layers

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if wait is not None:
                wait(layer)
            return self.attention.attend(q, k, v, layers[layer], prepared)

        observed = observing(attend, batch.observers, layers, batch.tables)
        return self.runner.model.forward(batch.ids, batch.positions, observed)

    def head(self, hidden: Tensor) -> Tensor:
        return self.runner.model.logits(hidden)

    def sample(
        self, logits: Tensor, fields: Mapping[str, Tensor], last_ids: Tensor, *rest: object
    ) -> tuple[Tensor, ...]:
        fields["tokens"].copy_(logits.argmax(1))
        last_ids[fields["slots"]] = fields["tokens"]
        return ()


@pytest.fixture
def staged(llama: Path) -> tuple[Engine, Stage]:
    return with_stage(engine_on(llama, prefix_cache=False))


def with_stage(engine: Engine) -> tuple[Engine, Any]:
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    stage = Stage(runner)
    runner.use_stages(stage, None)  # type: ignore[arg-type]
    return engine, stage


def test_the_first_step_of_each_kind_is_rehearsed(llama: Path, staged: tuple[Engine, Stage]) -> None:
    engine, stage = staged
    for length in (5, 7, 41):
        _, output = ask(engine, PROMPT[:length])
        drain(engine)
        assert output.reply == alone(llama, PROMPT[:length]).reply
    assert stage.rehearsed == [5, 1, 41]  # 7 tokens are like 5: kinds are powers of two
    assert stage.forwards.count(1) == 3 * (GREEDY.max_tokens - 1)
    engine.runner.products_changed(recordable=True)
    ask(engine, PROMPT[:5])
    drain(engine)
    assert stage.rehearsed == [5, 1, 41, 5, 1]


@pytest.mark.parametrize(("length", "graphs"), [(5, True), (40, False)])
def test_the_first_step_and_the_next_token_are_compiled_at_once(
    llama: Path, length: int, graphs: bool
) -> None:
    engine = engine_on(llama, prefix_cache=False)
    runner, asked = engine.runner, list[list[StepKind]]()
    assert isinstance(runner, ModelRunner)
    stage, usual = Stage(runner), runner.start_compiling
    runner.use_stages(stage, PlainStage(runner))  # type: ignore[arg-type]
    runner.start_compiling = lambda kinds: asked.append([*kinds]) or usual(kinds)  # type: ignore[method-assign]
    assert runner._steps is not None
    if not graphs:  # that are large enough
        runner._steps.piece_sizes = (32,)
    for _ in range(2):
        _, output = ask(engine, PROMPT[:length])
        drain(engine)
        assert output.reply == alone(llama, PROMPT[:length]).reply
    pieces = [StepKind(0, length, pieces=True)] if graphs else []
    assert asked == [[StepKind(0, length), *pieces, StepKind(1)]]
    stage.problem = "the compiler is broken"
    runner.products_changed(recordable=False)
    _, output = ask(engine, PROMPT[:length])
    drain(engine)
    assert "the compiler is broken" in output.error, "the step itself reports it"


def test_kinds_compiled_ahead_are_not_rehearsed_again(llama: Path, staged: tuple[Engine, Stage]) -> None:
    engine, stage = staged
    engine.runner.start_compiling([StepKind(0, 7), StepKind(1, 7), StepKind(0, 1)])
    assert (stage.rehearsed, stage.forwards) == ([7, 8, 1], [])
    for length in (5, 7, 41):
        _, output = ask(engine, PROMPT[:length])
        drain(engine)
        assert output.reply == alone(llama, PROMPT[:length]).reply
    assert stage.rehearsed == [7, 8, 1, 1, 41]  # the steps of one row decode


def test_rarer_kinds_of_sampling_are_compiled_ahead(staged: tuple[Engine, Stage]) -> None:
    engine, stage = staged
    found = list[set[str]]()
    sample = stage.sample

    def noted(logits: Tensor, fields: Mapping[str, Tensor], *rest: Any) -> tuple[Tensor, ...]:
        found.append({*fields} | ({"seen"} if rest[-1] is not None else set()))
        sample(logits, fields, *rest)
        return tuple(torch.zeros(1) for _ in range(4)) if "asked" in fields else ()

    stage.sample = noted  # type: ignore[method-assign]
    engine.runner.start_compiling([StepKind(0, 7, sampling=each) for each in RARE])
    usual = {"tokens", "slots", "columns"}
    assert found == [usual | {"asked", "seen"}, usual | {"bias_at", "biases"}]
    assert stage.rehearsed == [7, 7]


def test_copies_of_blocks_are_compiled_ahead(staged: tuple[Engine, Stage]) -> None:
    """Otherwise the first copy to a tier waits for the compiler, and its time says that the tier is slow."""
    engine, stage = staged
    runner, copies = engine.runner, list[list[tuple[int, int]]]()
    assert isinstance(runner, ModelRunner)
    runner.store.mover = lambda sources, targets, pairs: copies.append([*pairs])
    for _ in range(2):
        runner.start_compiling([StepKind(0, 7)])
    assert (copies, stage.rehearsed) == ([[(0, 0)]], [7])


def test_chunks_of_a_prompt_sample_no_token(llama: Path) -> None:
    engine, stage = with_stage(engine_on(llama, prefix_cache=False, max_step_tokens=16))
    _, output = ask(engine, PROMPT)
    drain(engine)
    assert output.reply == alone(llama, PROMPT).reply
    assert stage.rehearsed == [16, 9, 1]


def test_rows_for_the_sampler_are_sampled_once(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beams are chosen from the logits after the kernels, and that is not rehearsed."""
    params, drawn = replace(GREEDY, beams=3, n=3, max_tokens=8), SamplingState.by_sampler
    recorded: list[Outputs] = []
    rows: list[list[int]] = []  # the rows of each call of the sampler

    def counted(drawing: SamplingState, logits: Tensor, *given: Any, **named: Any) -> SampledTokens:
        rows[-1].append(len(logits))
        return drawn(drawing, logits, *given, **named)

    monkeypatch.setattr(SamplingState, "by_sampler", counted)
    plain, (engine, stage) = engine_on(llama), with_stage(engine_on(llama))
    for each in (plain, engine):
        recorded.append(Outputs())
        rows.append([])
        each.submit(PROMPT, params, recorded[-1])
        drain(each)
    assert recorded[0].replies == recorded[1].replies
    assert rows[0] == rows[1]
    assert stage.rehearsed[0] == len(PROMPT)


def test_a_kernel_that_does_not_compile_fails_only_its_step(
    llama: Path, staged: tuple[Engine, Stage]
) -> None:
    engine, stage = staged
    stage.problem = "ptxas is not there"
    _, output = ask(engine, PROMPT)
    drain(engine)
    assert "ptxas is not there" in output.error
    assert stage.forwards == []
    stage.problem = ""
    _, output = ask(engine, PROMPT)
    drain(engine)
    assert output.reply == alone(llama, PROMPT).reply


PARAMS_OF_KERNEL: dict[str, dict[str, Any]] = {
    "_attend": {}, "_find": {"top_k": 5}, "_note": {"frequency_penalty": 0.5},
    "_bias": {"logit_bias": {41: 4.0}}, "_of_row": {"logprobs": 3},
}  # fmt: skip


@pytest.mark.parametrize("kernel", PARAMS_OF_KERNEL)
def test_a_rehearsal_changes_no_state(llama: Path, monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    """Only kernels change state that outlives a step, and a rehearsal does not launch them."""
    pytest.importorskip("triton", reason="no Triton here")

    from engine.attention.triton_backend import TritonAttention
    from engine.execution.cuda.stage import GpuStage
    from engine.kernels.triton import precompile as rehearsal
    from tests.kernels.steps.test_compiles import FakeDriver, active

    engine = engine_on(llama, prefix_cache=False)
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    asked: list[str] = []

    class Rehearsing(GpuStage):
        def start_compiling(self, steps: Mapping[Hashable, Callable[[], object]]) -> Compilation:
            before = [each.clone() for each in state(runner)]
            super().start_compiling(steps)
            assert all(map(torch.equal, before, state(runner)))
            raise RuntimeError("nothing has changed")

    def launched(kernel: Any, *given: Any, warmup: bool, **named: Any) -> None:
        assert warmup
        asked.append(kernel.fn.__name__)

    monkeypatch.setattr(rehearsal, "triton_run", launched)
    ask(engine, PROMPT[:7])
    drain(engine)
    runner.use_stages(Rehearsing(runner.model, runner.store, TritonAttention()), None)  # type: ignore[arg-type]
    with active(FakeDriver(90)):
        _, output = ask(engine, PROMPT, replace(GREEDY, **PARAMS_OF_KERNEL[kernel]))
        drain(engine)
    assert "nothing has changed" in output.error
    assert {"_rope_and_cache", "_attend", "_pick", kernel} <= set(asked)


def state(runner: ModelRunner) -> list[Tensor]:
    """Return the tensors that outlive a step."""
    seen = runner._sampling_state._sampling._seen
    kept = [
        runner._sampling_state.last_ids,
        *(each for layer in runner.store.layers for each in layer.tensors()),
    ]
    return kept if seen is None else [*kept, seen.prompt, seen.reply]
