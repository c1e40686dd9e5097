"""Searches and samples on real models: other requests change no token, text or score."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.params import SamplingParams
from tests.groups.test_beams import assert_same, generate, search
from tests.outputs import Outputs
from tests.runner.letters import EOS
from tests.runner.small import FAMILIES, drain, engine_on, turn


@dataclass(frozen=True)
class Job:
    """One request; `preempt_after` counts steps from its submission."""

    prompt: tuple[int, ...]
    params: SamplingParams
    at: int
    preempt_after: tuple[int, ...]


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    shared, own = draw(st.sampled_from([0, 15, 16, 33])), draw(st.integers(1, 12))
    width = draw(st.integers(2, 4))
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.9])),
        logit_bias=draw(st.sampled_from([{}, {EOS: 4.0}])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
        stop=draw(st.sampled_from([(), ("a", "th")])),
        max_tokens=draw(st.integers(1, 14)),
        seed=draw(st.integers(0, 2)),
    )
    several = draw(st.sampled_from([{}, {"n": width}, {"best_of": width}, {"beams": width, "n": 2}]))
    return Job(
        prompt=(1, *range(60, 60 + shared), *range(200 - own, 200)),
        params=params.changed(**several),
        at=draw(st.integers(0, 5)),
        preempt_after=tuple(draw(st.lists(st.integers(1, 10), max_size=3))),
    )


@cache
def alone(folder: Path, prompt: tuple[int, ...], params: SamplingParams) -> Outputs:
    return search(engine_on(folder, prefix_cache=False), prompt, params)


@pytest.mark.soak
@settings(max_examples=12)
@given(
    work=st.lists(jobs(), min_size=2, max_size=4),
    depth=st.integers(0, 1),
    preemption=st.sampled_from(["recompute", "swap"]),
    prefix_cache=st.booleans(),
)
def test_other_requests_do_not_change_a_reply(
    llama: Path, work: list[Job], depth: int, preemption: Any, prefix_cache: bool
) -> None:
    engine = engine_on(
        llama,
        blocks=8,
        host_blocks=8,
        max_running=6,
        max_step_tokens=20,
        depth=depth,
        preemption=preemption,
        prefix_cache=prefix_cache,
    )
    results = [Outputs() for _ in work]
    ids: dict[int, int] = {}
    for step in range(6 + 11):
        for n, job in enumerate(work):
            if job.at == step:
                ids[n] = engine.submit(job.prompt, job.params, results[n])
            if step - job.at in job.preempt_after and not results[n].over:
                engine.preempt(ids[n])
        turn(engine)
    drain(engine)
    for job, result in zip(work, results, strict=True):
        expected = alone(llama, job.prompt, job.params).choices
        assert result.choices.keys() == expected.keys()
        for choice, one in result.choices.items():
            other = expected[choice]
            assert (one.tokens, one.text, one.finish) == (other.tokens, other.text, other.finish)
            assert one.score == pytest.approx(other.score, rel=1e-5)


@pytest.mark.soak
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "llama"])
def test_other_families(checkpoint: Callable[[str], tuple[Path, Any]], family: str) -> None:
    folder, theirs = checkpoint(family)
    params = SamplingParams(beams=4, n=4, max_tokens=16, logit_bias={EOS: 3.0})
    results = search(engine_on(folder), [1, *range(40, 70)], params)
    assert_same(results, generate(theirs, [1, *range(40, 70)], params, [EOS]))


def assert_same_as_transformers(folder: Path, prompt: list[int], ends: list[int]) -> None:
    from transformers import AutoModelForCausalLM

    engine = engine_on(folder, dtype="float32")
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    for width, more in ((4, {}), (10, {"length_penalty": 0.2, "early_stopping": True})):
        params = SamplingParams(beams=width, n=3, max_tokens=24, **more)
        assert_same(search(engine, prompt, params), generate(theirs, prompt, params, ends))


def test_the_built_in_model(root: Path) -> None:
    folder = root / "engine" / "pocket"
    engine = engine_on(folder)
    prompt = engine.tokenizer.encode("Once upon a time there was a")
    assert_same_as_transformers(folder, prompt, sorted(engine.limits.stop_ids))


def test_a_third_party_model(shared: Path) -> None:
    folder = shared / "models" / "stories260K"
    engine = engine_on(folder)
    assert_same_as_transformers(
        folder, engine.tokenizer.encode_raw("Once upon a time"), sorted(engine.limits.stop_ids)
    )
