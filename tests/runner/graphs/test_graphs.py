"""Decode steps through staging buffers, run directly on a CPU: bit for bit the plain runner's results."""

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.api.params import SamplingParams
from engine.execution.cuda.graphs import BIASES, DecodeSteps, each_token
from engine.execution.cuda.recording import Recording
from engine.execution.cuda.sampling_fields import write_sampling
from engine.execution.runner import ModelRunner
from engine.kv.tables import TableMirror
from engine.models.layers.stage_link import StageEnds, StageLink
from engine.sampling.rows import COLUMNS, SamplingInputs
from engine.scheduling.step import Rows, StepRow
from tests.cases import one_of, soak
from tests.examples import examples
from tests.runner.graphs.plain_stage import PlainStage, staged, with_staging
from tests.runner.replies.test_company import Workload, assert_nothing_changes, engine_for, workloads
from tests.runner.replies.test_transformers import PROMPT, WAYS, assert_as_in_transformers
from tests.runner.rows.test_speculation import always_draft
from tests.runner.small import alone, ask, close_to, drain, engine_on, turn


@examples(3)
@given(work=workloads, factor=st.sampled_from([None, 1.0]))
def test_other_requests_do_not_change_a_reply(llama: Path, work: Workload, factor: float | None) -> None:
    """Also with the smallest pieces of prompts beside replies."""
    engine = with_staging(engine_for(llama, work))
    engine.scheduler.pace.limit(factor)
    assert_nothing_changes(engine, llama, work)


@pytest.mark.parametrize(("name", "depth"), [("llama", 0), ("mistral", 1)])  # the family hardly matters
@pytest.mark.parametrize("way", one_of(2, WAYS))
def test_logits_are_those_of_transformers(
    checkpoint: Callable[[str], tuple[Path, Any]], way: str, name: str, depth: int
) -> None:
    folder, theirs = checkpoint(name)
    run, config = WAYS[way]
    assert_as_in_transformers(theirs, PROMPT, run(with_staging(engine_on(folder, depth=depth, **config))))


@pytest.mark.parametrize("depth", [*soak(0), 1])
def test_rows_of_all_kinds_join_and_leave(llama: Path, depth: int) -> None:
    """With three or five rows some rows are padding. Each reply equals the request's reply alone."""
    kinds: tuple[dict[str, Any], ...] = (
        {}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}, {"temperature": 0.0},
        {"frequency_penalty": 0.5, "repetition_penalty": 1.2}, {"logit_bias": {41: 4.0}, "min_tokens": 9},
        {"logprobs": 3, "presence_penalty": 0.7},
    )  # fmt: skip
    asked = [
        SamplingParams(**{"temperature": 0.9, "seed": 7, "max_tokens": 30, "ignore_eos": True} | kind)
        for kind in kinds
    ]
    engine = engine_on(llama, depth=depth, max_running=11, prefix_cache=False)
    stage, outputs = staged(engine), []
    for number, params in enumerate(asked):
        prompt = [1, *range(40, 55 + number)]
        outputs.append((prompt, params, ask(engine, prompt, params)[1]))
        for _ in range(4):
            turn(engine)
    drain(engine)
    assert {*stage.sizes} >= {1, 2, 4}
    assert len(stage.sizes) == len(stage.flags), "a decode was not sampled in its graph"
    assert len(stage.pieces) == len(asked), "a prompt was not in a graph"
    assert all({each[at] for each in stage.flags} == {True, False} for at in range(4))
    for prompt, params, found in outputs:
        expected = alone(llama, prompt, params)
        assert found.reply == expected.reply
        assert len(found.logprobs) == len(expected.logprobs) and close_to(found.logprobs, expected.logprobs)
    runner = engine.runner
    runner._tables.apply(engine.scheduler.tables.take_changes())
    mirror, unsent = stage.mirror.numpy().copy(), runner._tables.unsent()
    mirror.reshape(-1)[unsent.cells] = unsent.blocks
    assert np.array_equal(mirror, engine.scheduler.tables.grid)


@pytest.mark.parametrize("most", [4, *soak(16)])
def test_drafts_are_verified_in_the_graph_of_as_many_rows(drafted: Path, most: int) -> None:
    """A row with three drafts is four rows of a graph. With room for four, two such rows have no graph."""
    kinds: tuple[dict[str, Any], ...] = (
        {"speculate": "ngram"},
        {"speculate": "suffix", "temperature": 0.8},
        {"speculate": "draft", "repetition_penalty": 1.2},
        {"speculate": "exit", "logprobs": 2},
    )
    usual = {"logit_bias": {41: 22.0, 42: 21.5}, "seed": 7, "max_tokens": 30, "ignore_eos": True}
    asked = [SamplingParams(**usual | {"temperature": 0.0, "draft_tokens": 3} | kind) for kind in kinds]
    engine = always_draft(engine_on(drafted, max_running=most))
    stage, outputs = staged(engine), []
    for params in asked:
        outputs.append(ask(engine, PROMPT, params)[1])
        for _ in range(8):
            turn(engine)
    drain(engine)
    largest = max(stage.sizes)  # how many of the four requests draft in one step depends on measured times
    assert largest > len(asked) if most > len(asked) else largest == most
    assert {each.logprobs for each in stage.flags} == {True, False}
    for params, found in zip(asked, outputs, strict=True):
        expected = alone(drafted, PROMPT, params.changed(speculate="", draft_tokens=0))
        assert found.reply == expected.reply
        assert close_to(found.logprobs, expected.logprobs)


def test_the_tokens_of_a_piece_follow_one_another() -> None:
    decode, piece = StepRow(1, 0, 90, 1, samples=True), StepRow(2, 3, 40, 3, samples=True, skipped=16)
    expected = [decode, *(piece._replace(start=at, length=1) for at in (40, 41, 42))]
    assert each_token(Rows.of([decode, piece])) == Rows.of(expected)


def test_pieces_of_prompts_run_beside_decodes(llama: Path) -> None:
    """Pieces of one prompt in a step, of two, and of three, which no graph holds."""
    prompts = [[1, *range(40, 40 + length)] for length in (3, 21, 30, 9, 26, 200)]
    engine = engine_on(llama, depth=1, max_step_tokens=100, prefix_cache=False)
    stage, outputs = staged(engine), []
    stage.most = 2
    for sizes in (1, 2, 3):
        for _ in range(sizes):
            outputs.append(ask(engine, prompts[len(outputs)])[1])
        for _ in range(3):
            turn(engine)
    drain(engine)
    assert stage.pieces == [16, 64, 112, 64], "not the step of three pieces"
    for prompt, found in zip(prompts, outputs, strict=True):
        assert found.reply == alone(llama, prompt).reply


def test_short_prompts_over_four_bits_run_in_a_graph(llama: Path) -> None:
    """Its tokens need what the ones before them write, as in drafts."""
    engine, plain = (engine_on(llama, kv_scheme="int4") for _ in range(2))
    stage, prompt = staged(engine), [1, *range(40, 77)]
    replies = []
    for each in engine, plain:
        replies.append(ask(each, prompt)[1])
        drain(each)
    assert stage.pieces == [48]
    assert replies[0].reply == replies[1].reply


def test_staging_buffers_are_reset_for_each_step() -> None:
    """Padding has no penalties, as it has no slot whose tokens could be counted."""
    size, at = 4, COLUMNS.index
    fields = {
        "columns": np.zeros((len(COLUMNS), size)),
        "asked": np.zeros(size, np.int32),
        "bias_at": np.zeros(BIASES, np.int64),
        "biases": np.zeros(BIASES, np.float32),
    }
    numbers = np.arange(3.0 * len(COLUMNS)).reshape(3, -1) + 2
    three = np.array([0, 2, 2]), np.array([7, 7, 9]), np.array([1.0, -2.0, 4.0], np.float32)
    one = tuple(each[1:2] for each in three)
    write_sampling(fields, SamplingInputs(numbers, 50, None, three, ((0, 3), (2, 5))))
    assert fields["bias_at"][:4].tolist() == [7, 107, 109, -1]
    assert fields["asked"].tolist() == [3, -1, 5, -1]
    write_sampling(fields, SamplingInputs(numbers[:1], 50, None, one, ()))
    assert fields["bias_at"][0] == 107
    assert fields["biases"][0] == -2.0
    assert (fields["bias_at"][1:] == -1).all()
    assert (fields["asked"] == -1).all()
    assert (fields["columns"][:, 0] == numbers[0]).all()
    assert (fields["columns"][at("temperature"), 1:] == numbers[0, at("temperature")]).all()
    assert (fields["columns"][at("repetition"), 1:] == 1).all()
    assert not fields["columns"][[at("presence"), at("frequency")], 1:].any()


def test_the_tokens_of_all_steps_in_flight_are_kept(llama: Path) -> None:
    """The last of five stages may launch five steps before it reads the tokens of the first."""
    runner = engine_on(llama).runner
    assert isinstance(runner, ModelRunner)
    link = cast(StageLink, SimpleNamespace(stages=5, first=True, last=True))
    last_ids = runner._sampling_state.last_ids
    steps = DecodeSteps(
        PlainStage(runner), tables=TableMirror(1, 4), block_size=16, last_ids=last_ids, ends=StageEnds(link)
    )
    inputs = SamplingInputs(np.zeros((1, len(COLUMNS))), runner.model.config.vocab, None, None, ())
    found, copies = [], []
    for at in range(5):
        tokens, *_ = steps.sample(Rows.of([StepRow(0, 0, at, 1, samples=True)]), np.array([at + 3]), inputs)
        found.append(tokens)
        copies.append(tokens.tolist())
    assert [each.tolist() for each in found] == copies
    assert len({*map(tuple, copies)}) > 1, "all tokens are alike, so this shows nothing"


def test_recordings_may_be_dropped(llama: Path) -> None:
    engine = with_staging(engine_on(llama))
    _, output = ask(engine, PROMPT)
    for _ in range(5):
        turn(engine)
    engine.runner.products_changed(recordable=True)
    drain(engine)
    assert output.reply == alone(llama, PROMPT).reply


@pytest.mark.parametrize("depth", [*soak(0), 1])
@pytest.mark.parametrize(("owner", "name"), [(Recording, "run"), (PlainStage, "logits")])
def test_staging_stays_consistent_after_a_step_without_memory(
    llama: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, depth: int
) -> None:
    """Changes of the tables are sent again, and the next tokens are read from where they arrive."""
    tries, call = itertools.count(), getattr(owner, name)

    def sometimes_fail(*given: Any) -> Any:
        if next(tries) in {1, 4, 5, 11, 15}:  # 4 and 5 are the first and the second try of one step
            raise torch.OutOfMemoryError("no memory")
        return call(*given)

    monkeypatch.setattr(owner, name, sometimes_fail)
    engine = with_staging(engine_on(llama, depth=depth))
    prompts = [[1, *range(40, 40 + length)] for length in (5, 30, 47)]
    outputs = [ask(engine, prompt)[1] for prompt in prompts]
    drain(engine)
    assert next(tries) > 16
    for prompt, each in zip(prompts, outputs, strict=True):
        assert each.reply == alone(llama, prompt).reply
