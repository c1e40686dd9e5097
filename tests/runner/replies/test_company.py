"""Invariant 1 on a real model: other requests change timing, never a token, the text or a logprob."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.api.params import FIELDS, Grammar, SamplingParams
from engine.api.request import Finish
from engine.serving.engine import Engine
from tests.examples import examples
from tests.outputs import Output
from tests.runner.letters import EOS, byte_tokenizer
from tests.runner.small import alone, close_to, drain, engine_on, turn

A, B, C = (byte_tokenizer().token_to_id(letter) for letter in "abc")
BLOCKS, LAST = 6, 24
GRAMMARS = (Grammar("json", '{"type": "object"}'), Grammar("regex", "(the |[a-c]{2,9})+"))


@dataclass(frozen=True)
class Job:
    """One request, and what happens to it; the `after` fields count steps from its submission."""

    prompt: tuple[int, ...]
    params: SamplingParams
    at: int
    abort_after: int | None
    preempt_after: int | None
    fork_after: int | None
    update_after: int | None
    other: SamplingParams  # the parameters of the update


@dataclass(frozen=True)
class Workload:
    jobs: tuple[Job, ...]
    depth: int
    step_tokens: int
    preemption: str
    prefix_cache: bool


@st.composite
def parameters(draw: st.DrawFn) -> SamplingParams:
    """Parameters of every kind, with biases that make stop strings occur, also across tokens."""
    biases = st.sampled_from([{}, {A: 6.0, B: 6.0}, {A: 5.0, B: 5.0, C: 4.0}, {EOS: 5.0}])
    most = draw(st.integers(1, LAST))
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.0, 0.8, 1.5])),
        top_k=draw(st.sampled_from([0, 0, 20])),
        top_p=draw(st.sampled_from([1.0, 0.9, 0.5])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.1])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 0.7])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.4])),
        logit_bias=draw(biases),
        seed=draw(st.integers(0, 2)),
        stop=draw(st.sampled_from([(), (), ("ab",), ("aab", "bb"), ("aaaa", "ba")])),
        stop_ids=draw(st.sampled_from([(), (), (C,)])),
        min_tokens=min(most, draw(st.sampled_from([0, 0, 3, 8]))),
        max_tokens=most,
        logprobs=draw(st.sampled_from([None, None, 0, 3])),
        ignore_eos=draw(st.booleans()),
        grammar=draw(st.sampled_from([None, None, *GRAMMARS])),
    )


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    # Prompts with common prefixes, so that the prefix cache finds some, that end anywhere in a block.
    shared, own = draw(st.sampled_from([0, 15, 16, 17, 33])), draw(st.integers(1, 20))
    after = st.one_of(st.none(), st.none(), st.integers(1, 12))
    return Job(
        prompt=(1, *range(60, 60 + shared), *range(200 - own, 200)),
        params=draw(parameters()),
        at=draw(st.integers(0, 8)),
        abort_after=draw(after),
        preempt_after=draw(after),
        fork_after=draw(after),
        update_after=draw(st.one_of(st.none(), after)),
        other=draw(parameters()),
    )


workloads = st.builds(
    Workload,
    jobs=st.lists(jobs(), min_size=2, max_size=5).map(tuple),
    depth=st.integers(0, 1),
    step_tokens=st.sampled_from([8, 20, 200]),
    preemption=st.sampled_from(["recompute", "swap"]),
    prefix_cache=st.booleans(),
)


def engine_for(folder: Path, work: Workload, **more: Any) -> Engine:
    return engine_on(
        folder,
        blocks=BLOCKS,
        host_blocks=BLOCKS,
        max_running=6,
        max_step_tokens=work.step_tokens,
        depth=work.depth,
        preemption=work.preemption,
        prefix_cache=work.prefix_cache,
        **more,
    )


@examples(5)
@given(work=workloads)
def test_other_requests_do_not_change_a_reply(llama: Path, work: Workload) -> None:
    assert_nothing_changes(engine_for(llama, work), llama, work)


def assert_nothing_changes(engine: Engine, llama: Path, work: Workload) -> None:
    replies: list[tuple[Job, Output]] = []
    forks: list[tuple[Job, Output, str, int]] = []  # with the text and the length of the parent at the fork
    ids: dict[int, Job] = {}
    updated: set[Job] = set()  # other tests check the tokens after an update
    for step in range(8 + 13):
        for job in work.jobs:
            if job.at == step:
                replies.append((job, output := Output()))
                ids[engine.submit(job.prompt, job.params, output)] = job
        for id, job in ids.items():
            if (request := engine.scheduler.requests.get(id)) is None:
                continue
            if step - job.at == job.preempt_after:
                engine.preempt(id)
            if step - job.at == job.fork_after:
                parent = next(output for mine, output in replies if mine is job)
                forks.append((job, branch := Output(), parent.text, request.generated))
                engine.fork(id, branch)
            if step - job.at == job.update_after:
                updated.add(job)
                engine.update(id, **{name: getattr(job.other, name) for name in FIELDS})
            if step - job.at == job.abort_after:
                engine.abort(id)
        turn(engine)
    drain(engine)

    assert all(output.finish for _, output, *_ in (*replies, *forks))
    for job, output in replies:
        if job in updated:
            continue
        expected = alone(llama, job.prompt, job.params)
        if output.finish is Finish.ABORTED:
            assert job.abort_after is not None
            assert output.tokens == expected.tokens[: len(output.tokens)]
            assert output.text == engine.tokenizer.decode(output.tokens, after=job.prompt)
        else:
            assert output.reply == expected.reply
        assert close_to(output.logprobs, expected.logprobs[: len(output.logprobs)])
    for job, output, parent, count in forks:  # the same seed: a fork samples the same tokens as its parent
        if job in updated:
            continue
        expected = alone(llama, job.prompt, job.params)
        assert (output.tokens, output.finish) == (expected.tokens[count:], expected.finish)
        assert parent + output.text == expected.text
        assert close_to(output.logprobs, expected.logprobs[count:] if expected.logprobs else [])
