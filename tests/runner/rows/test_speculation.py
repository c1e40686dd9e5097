"""Drafts of every kind on a real model change how many tokens a step gives, never which."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from engine.api.errors import BadInput, BadParams
from engine.api.params import SPECULATION, SamplingParams
from engine.serving.engine import Engine
from tests.cases import one_of, one_row_of
from tests.examples import TIMES
from tests.outputs import Output
from tests.runner.replies.test_company import A, B, Workload, assert_nothing_changes, engine_for, workloads
from tests.runner.small import GREEDY, alone, ask, drain, engine_on
from tests.speculation.test_company import FreeDrafts

KINDS = st.sampled_from(("", *SPECULATION))
LETTERS = {A: 22.0, B: 21.5}  # only two letters are likely, so the same runs repeat


def always_draft(engine: Engine) -> Engine:
    """Make the engine draft whenever it can."""
    engine.scheduler.speculator.prices = FreeDrafts()
    return engine


def speculative(work: Workload, kinds: list[str], others: list[str]) -> Workload:
    jobs = (
        replace(
            job,
            params=job.params if job.params.grammar else job.params.changed(speculate=kind),
            other=job.other if job.other.grammar else job.other.changed(speculate=other),
        )
        for job, kind, other in zip(work.jobs, kinds, others, strict=False)
    )
    return replace(work, jobs=tuple(jobs))


@settings(max_examples=3 * TIMES, phases=[Phase.generate])
@given(
    work=workloads,
    kinds=st.lists(KINDS, min_size=5, max_size=5),
    others=st.lists(KINDS, min_size=5, max_size=5),
)
def test_drafts_do_not_change_a_reply(
    drafted: Path, work: Workload, kinds: list[str], others: list[str]
) -> None:
    engine = always_draft(engine_for(drafted, work))
    assert_nothing_changes(engine, drafted, speculative(work, kinds, others))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "temperature", "depth"),
    one_row_of(3, ((kind, *how) for kind in SPECULATION for how in ((0.8, 0), (0.0, 1)))),
)
def test_a_long_reply(drafted: Path, kind: str, temperature: float, depth: int) -> None:
    params = SamplingParams(
        temperature=temperature, max_tokens=80, ignore_eos=True, seed=3, logit_bias=LETTERS, logprobs=1
    )
    engine = always_draft(engine_on(drafted, depth=depth))
    outputs = Output()
    engine.submit([1, A, B, A, B], params.changed(speculate=kind), outputs)
    drain(engine)
    expected = alone(drafted, [1, A, B, A, B], params)
    assert outputs.reply == expected.reply
    assert [each.token for each in outputs.logprobs] == expected.tokens
    assert [each.logprob for each in outputs.logprobs] == [each.logprob for each in expected.logprobs]
    total = engine.scheduler.speculator.total()
    assert total.accepted >= 3, f"drafts of this text are often right: {total}"


def test_drafts_over_latents_change_no_bit(checkpoint: Callable[[str], tuple[Path, Any]]) -> None:
    """Rows with drafts are several tokens of one step, and the routers of its experts see them together."""
    folder, _ = checkpoint("deepseek_v3")
    engine = always_draft(engine_on(folder))
    params = replace(GREEDY, max_tokens=60, logit_bias=LETTERS, logprobs=1)
    _, output = ask(engine, [1, A, B, A, B], params.changed(speculate="ngram"))
    drain(engine)
    expected = alone(folder, [1, A, B, A, B], params)
    assert output.reply == expected.reply
    assert [each.logprob for each in output.logprobs] == [each.logprob for each in expected.logprobs]
    assert engine.scheduler.speculator.total().accepted >= 3


@pytest.mark.parametrize("kind", one_of(2, SPECULATION))
def test_penalties_see_the_drafts_before_a_token(drafted: Path, kind: str) -> None:
    params = SamplingParams(
        temperature=0.7,
        max_tokens=90,
        ignore_eos=True,
        seed=5,
        logit_bias=LETTERS,
        frequency_penalty=0.1,
        presence_penalty=0.3,
        repetition_penalty=1.02,
    )
    engine = always_draft(engine_on(drafted))
    _, output = ask(engine, [1, A, B, A, B], params.changed(speculate=kind))
    drain(engine)
    total = engine.scheduler.speculator.total()
    assert total.accepted >= 3, f"drafts of this text are often right: {total}"
    assert output.reply == alone(drafted, [1, A, B, A, B], params).reply


def test_speculation_without_its_model_is_refused_by_name(llama: Path) -> None:
    engine = engine_on(llama)
    for kind, lacks in (("draft", "draft model"), ("exit", "early_exit_layers")):
        with pytest.raises(BadParams, match=lacks) as caught:
            ask(engine, [1, 2], GREEDY.changed(speculate=kind))
        assert caught.value.field == "speculate"
    id, _ = ask(engine, [1, 2])
    with pytest.raises(BadParams, match="draft model"):
        engine.update(id, speculate="draft")


def test_a_draft_of_another_vocabulary_is_refused(llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(llama, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": config["vocab_size"] + 1}))
    with pytest.raises(BadInput, match="same tokenizer"):
        engine_on(llama, draft=str(folder), dummy_weights=True)


def test_an_exit_that_was_not_trained_is_refused(drafted: Path) -> None:
    with pytest.raises(BadInput, match="trained to exit after layer 1, not 2"):
        engine_on(drafted, exit_layer=2)


def test_tokens_of_one_step_share_its_time(drafted: Path) -> None:
    """Tokens of one step arrive together, and none of them is counted as taking no time."""
    engine = always_draft(engine_on(drafted))
    params = replace(GREEDY, speculate="ngram", max_tokens=40, logit_bias=LETTERS)
    ask(engine, [A, B] * 8, params)
    drain(engine)
    shot = engine.snapshot()
    times = shot.itl
    assert shot.speculation.accepted > 10
    assert times.count == 39 and times.p50 > 0
