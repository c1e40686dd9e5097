"""A draft model's forwards through staging buffers, run directly on a CPU: the drafts of the plain runner."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.api.params import SamplingParams
from engine.execution.cuda.drafts import DraftReplays
from engine.execution.cuda.sampling_fields import SamplingFlags
from engine.execution.draft import drafting
from engine.execution.draft.drafting import SmallModel
from engine.execution.runner import ModelRunner
from engine.sampling.penalties import SeenTokens
from engine.scheduling.step import Rows, StepRow
from engine.serving.engine import Engine
from engine.serving.warm_up import WarmUp
from tests.examples import TIMES
from tests.runner.graphs.plain_stage import PlainStage, staged
from tests.runner.replies.test_company import A, B, Workload, assert_nothing_changes, engine_for, workloads
from tests.runner.rows.test_speculation import KINDS, LETTERS, always_draft, speculative
from tests.runner.small import GREEDY, alone, ask, drain, engine_on, turn

LONG = [1, *range(40, 77)]


class DraftStage(PlainStage):
    """The same for a draft model, whose pieces of prompts are sampled after the graph."""

    def __init__(self, small: SmallModel) -> None:
        super().__init__(
            cast(
                ModelRunner,
                SimpleNamespace(
                    model=small.model, store=small.store, adapters=None, _drafts=SimpleNamespace(states=None)
                ),
            )
        )
        self.sampled = 0  # calls of `head`

    def head(self, hidden: Tensor) -> Tensor:
        self.sampled += 1
        return self.runner.model.logits(hidden)

    def sample(
        self,
        logits: Tensor,
        fields: Mapping[str, Tensor],
        last_ids: Tensor,
        flags: SamplingFlags,
        seen: SeenTokens | None,
    ) -> tuple[Tensor, ...]:
        assert not flags.logprobs, "drafts need no log-probabilities"
        slots = fields["slots"]
        usual = {"places": torch.zeros_like(slots), "asked": torch.full_like(slots, -1)}
        return super().sample(logits, usual | {**fields}, last_ids, flags, seen)


def draft_model(engine: Engine) -> SmallModel:
    assert isinstance(engine.runner, ModelRunner)
    (small,) = engine.runner._drafts.small
    return small


def drafts_staged(engine: Engine) -> DraftStage:
    """Have the engine run the decode steps of both models through staging buffers."""
    staged(engine)
    runner, small = engine.runner, draft_model(engine)
    assert isinstance(runner, ModelRunner) and runner._steps is not None
    stage = DraftStage(small)
    small.replays = DraftReplays(stage, runner._steps.beside(stage), runner._sampling_state)
    return stage


def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, tuple[int, ...]]]:
    """A list that gets the request, position and drafts of each verification from now on."""
    seen, observe = list[tuple[int, int, tuple[int, ...]]](), SmallModel.observe

    def observed(self: SmallModel, row: StepRow, drafts: tuple[int, ...]) -> None:
        seen.append((row.request, row.start, drafts))
        observe(self, row, drafts)

    monkeypatch.setattr(SmallModel, "observe", observed)
    return seen


KINDS_OF_ROWS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.8, "draft_tokens": 2},
    {"temperature": 0.8, "top_p": 0.9, "frequency_penalty": 0.3, "draft_tokens": 4},
    {"logprobs": 2, "draft_tokens": 5},
    {"logit_bias": {A: 22.0, B: 21.5, 43: 3.0}},
)


USUAL = SamplingParams(
    temperature=0.0,
    draft_tokens=3,
    seed=7,
    max_tokens=30,
    ignore_eos=True,
    logit_bias=LETTERS,
    speculate="draft",
)


def test_drafts_are_the_same_in_graphs(drafted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of rows that draft different numbers of tokens."""
    asked = [USUAL.changed(**kind) for kind in KINDS_OF_ROWS]
    seen, found = noted(monkeypatch), []
    for replayed in (False, True):
        engine = always_draft(engine_on(drafted))
        stage = drafts_staged(engine) if replayed else None
        outputs = []
        for number, params in enumerate(asked):
            outputs.append(ask(engine, LONG[number:], params)[1])
            turn(engine)
        drain(engine)
        found.append(sorted(seen))
        seen.clear()
        for number, (params, output) in enumerate(zip(asked, outputs, strict=True)):
            assert output.reply == alone(drafted, LONG[number:], params.changed(draft_tokens=0)).reply
    assert found[0] == found[1]
    assert stage is not None and len({*stage.sizes}) > 1
    assert {each.penalized for each in stage.flags} == {True, False}
    assert stage.sampled > 1, "no row ran whose drafts had all been accepted"


def test_rows_that_no_graph_samples_run_outside(drafted: Path) -> None:
    params = USUAL.changed(logprob_token_ids=(A, B), logprobs=0)
    engine = always_draft(engine_on(drafted))
    stage = drafts_staged(engine)
    _, output = ask(engine, LONG, params)
    drain(engine)
    assert output.reply == alone(drafted, LONG, params.changed(draft_tokens=0)).reply
    assert engine.scheduler.speculator.total().accepted > 0
    assert not stage.sizes and not stage.sampled


def test_forwards_of_a_step_do_not_wait(drafted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are read once a step, however many there are."""
    engine = always_draft(engine_on(drafted))
    stage, seen, reads = drafts_staged(engine), noted(monkeypatch), list[int]()
    read = Tensor.cpu
    monkeypatch.setattr(Tensor, "cpu", lambda self: reads.append(len(self)) or read(self))
    ask(engine, LONG, GREEDY.changed(speculate="draft", draft_tokens=5, logit_bias=LETTERS))
    drain(engine)
    assert reads == [len(drafts) for _, _, drafts in seen]
    assert max(reads) == 5
    assert len(stage.sizes) + stage.sampled == sum(reads)


def test_a_long_prompt_is_cached_in_graphs(drafted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafting, "PIECE", 16)
    engine = always_draft(engine_on(drafted))
    stage = drafts_staged(engine)
    params = GREEDY.changed(speculate="draft", draft_tokens=2, max_tokens=4)
    _, output = ask(engine, LONG, params)
    drain(engine)
    assert output.reply == alone(drafted, LONG, params.changed(draft_tokens=0)).reply
    assert stage.pieces[:3] == [16, 16, 16], "39 tokens"


def test_graphs_that_are_switched_off_run_no_drafts(drafted: Path) -> None:
    engine = always_draft(engine_on(drafted))
    stage = drafts_staged(engine)
    engine.set_switch("graphs", False)
    ask(engine, LONG, GREEDY.changed(speculate="draft", draft_tokens=3))
    drain(engine)
    assert not stage.sizes and not stage.pieces


@settings(max_examples=3 * TIMES, phases=[Phase.generate])
@given(
    work=workloads,
    kinds=st.lists(KINDS, min_size=5, max_size=5),
    others=st.lists(KINDS, min_size=5, max_size=5),
)
def test_drafts_in_graphs_do_not_change_a_reply(
    drafted: Path, work: Workload, kinds: list[str], others: list[str]
) -> None:
    """Among forks, preemptions, prefix hits and updates."""
    engine = always_draft(engine_for(drafted, work))
    drafts_staged(engine)
    assert_nothing_changes(engine, drafted, speculative(work, kinds, others))


@pytest.mark.cuda
@pytest.mark.parametrize("depth", [0, 1])
def test_drafts_on_a_gpu_are_the_same_in_graphs(
    drafted: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    params = GREEDY.changed(speculate="draft", draft_tokens=4, logit_bias=LETTERS, max_tokens=60)
    seen, found = noted(monkeypatch), []
    for graphs in (True, False):
        engine = always_draft(engine_on(drafted, device="cuda", depth=depth))
        engine.set_switch("graphs", graphs)
        assert draft_model(engine).replays is not None
        outputs = [ask(engine, LONG[number:], params)[1] for number in range(3)]
        drain(engine)
        for number, output in enumerate(outputs):
            assert output.reply == alone(drafted, LONG[number:], params.changed(draft_tokens=0)).reply
        found.append(sorted(seen))
        seen.clear()
    assert found[0] == found[1]


@pytest.mark.cuda
def test_forwards_on_a_gpu_do_not_wait(drafted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.execution.cuda.foreign import waits_refused  # it imports Triton

    engine = always_draft(engine_on(drafted, device="cuda", depth=1, prefix_cache=False))
    params = GREEDY.changed(speculate="draft", draft_tokens=5, logit_bias=LETTERS)
    launched, sample = list[bool](), DraftReplays.sample

    def unwaited(replays: DraftReplays, rows: Rows, ids: np.ndarray) -> bool:
        with waits_refused():
            launched.append(sample(replays, rows, ids))
        return launched[-1]

    for _ in range(2):  # kernels are compiled and graphs captured
        ask(engine, LONG, params)
        drain(engine)
    monkeypatch.setattr(DraftReplays, "sample", unwaited)
    _, output = ask(engine, LONG, params)
    drain(engine)
    assert output.reply == alone(drafted, LONG, params.changed(draft_tokens=0)).reply
    assert len(launched) > 5 and all(launched)


@pytest.mark.cuda
def test_graphs_of_drafts_are_captured_by_the_warm_up(drafted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of prompts."""
    config = {"device": "cuda", "depth": 1, "prefix_cache": False, "max_slowdown": 2.0}
    engine = always_draft(engine_on(drafted, **config))
    warm_up = WarmUp(engine, engine.runner.graph_sizes)
    while not warm_up.over:
        warm_up.step()
    captured: list[object] = []
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", lambda *given, **named: captured.append(named))
    params = GREEDY.changed(speculate="draft", draft_tokens=4)
    _, output = ask(engine, LONG, params)
    drain(engine)
    assert not captured
    assert output.reply == alone(drafted, LONG, params.changed(draft_tokens=0)).reply
