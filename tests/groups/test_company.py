"""Invariant 1 with searches, samples and plain requests in one batch: timing changes, never output.

Run on the ledger: a hypothesis that reads a cell of another one's text gets wrong candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.params import SamplingParams
from engine.api.request import Finish
from engine.kv.groups import BlockGroups
from engine.kv.window import Window
from engine.serving.groups.samples import seed_of
from engine.serving.groups.search import BeamSearch, SearchRules, tokens_of
from tests.engine.ledger import alone, drain, ledger_engine, most_likely_tokens
from tests.engine.workloads import AFTER, BLOCK, EngineSetup, Workload, prompts, run, workloads
from tests.examples import examples
from tests.outputs import Outputs

WINDOWED = BlockGroups(BLOCK, (None, Window(32, 0, BLOCK, piece=64)))  # of layers
STOPS = tuple(range(0, 1000, 100))  # ten tokens in a thousand, so that most searches meet one


def searched(prompt: Sequence[int], params: SamplingParams) -> list[list[int]]:
    """The oracle: the same search over whole texts, without an engine."""
    seed, rules = params.seed or 0, SearchRules.of(params, frozenset())
    search = BeamSearch(rules, params.max_tokens or 1)
    enders = set(params.stop_ids)
    while not search.over:
        found = [
            most_likely_tokens([*prompt, *tokens_of(path)], seed, rules.candidates) for path in search.live
        ]
        ids, values = (np.stack(side) for side in zip(*found, strict=True))
        search.advance(ids, values, lambda _, token: token in enders)
    return [list(done.tokens) for done in search.done[: params.n]]


@dataclass(frozen=True)
class Job:
    """One request, and what happens to it; the `after` fields count steps from its submission."""

    prompt: tuple[int, ...]
    params: SamplingParams
    at: int
    abort_after: int | None
    preempt_after: int | None
    switch_after: int | None  # to a search of two, or away from one

    def expected(self) -> list[list[int]]:
        if self.params.beams > 1:
            return searched(self.prompt, self.params)
        count, seed = self.params.max_tokens or 1, self.params.seed or 0
        return [alone(self.prompt, count, seed_of(seed, choice)) for choice in range(self.params.samples)]


@st.composite
def parameters(draw: st.DrawFn, most: int, slots: int) -> SamplingParams:
    plain = SamplingParams(max_tokens=draw(st.integers(1, most)), seed=draw(st.integers(0, 3)))
    kind = draw(st.sampled_from(["plain", "samples", "beams", "beams"]))
    width = draw(st.integers(2, 6))
    if kind == "samples":
        return replace(plain, n=width)
    if kind == "plain" or width > slots:
        return replace(plain, speculate=draw(st.sampled_from(["", "ngram"])))
    return replace(
        plain,
        beams=width,
        n=draw(st.integers(1, width)),
        length_penalty=draw(st.sampled_from([1.0, 0.0, 2.0])),
        early_stopping=draw(st.sampled_from([False, True, "never"])),
        stop_ids=draw(st.sampled_from([(), STOPS])),
    )


@st.composite
def jobs(draw: st.DrawFn, place: EngineSetup) -> Job:
    room = min(place.tokens, 80)
    prompt = draw(prompts(room))
    return Job(
        prompt=prompt,
        params=draw(parameters(min(30, room - len(prompt)), place.slots)),
        at=draw(st.integers(0, 10)),
        abort_after=draw(AFTER),
        preempt_after=draw(AFTER),
        switch_after=draw(st.one_of(st.none(), st.none(), AFTER)),
    )


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param(BlockGroups(BLOCK), id="plain", marks=pytest.mark.soak),
        pytest.param(WINDOWED, id="windowed"),
    ],
)
@examples(10)
@given(work=workloads([4, 6, 9, 16, 40], jobs, most=6))
def test_other_requests_do_not_change_a_reply(groups: BlockGroups, work: Workload[Job]) -> None:
    engine = replace(work.place, blocks=work.place.blocks * groups.count).engine(groups=groups)
    results = {job: Outputs() for job in work.jobs}
    ids: dict[Job, int] = {}
    switched: set[Job] = set()  # other tests check the tokens after a switch

    def before(step: int) -> None:
        engine.snapshot()
        for job in results:
            if job.at == step:
                ids[job] = engine.submit(job.prompt, job.params, results[job])
            if step - job.at == job.preempt_after and not results[job].over:
                engine.preempt(ids[job])
            if step - job.at == job.abort_after:
                engine.abort(ids[job])
            single = job.params.samples == 1 and work.place.slots > 1 and not results[job].over
            if single and step - job.at == job.switch_after:
                engine.update(ids[job], beams=1 if job.params.beams > 1 else 2, speculate="")
                switched.add(job)

    run(engine, 11 + 13, before)
    for job, result in results.items():
        assert result.over, "a request did not end"
        assert all(len(tokens) <= (job.params.max_tokens or 1) for tokens in result.replies)
        if job in switched:
            continue
        expected = job.expected()
        finishes = {one.finish for one in result.choices.values()}
        if Finish.ABORTED not in finishes:
            assert result.replies == expected
        else:
            assert job.abort_after is not None
        if job.params.beams == 1:
            for choice, one in result.choices.items():
                assert one.tokens == expected[choice][: len(one.tokens)]


@pytest.mark.parametrize("depth", [0, 1])
def test_two_searches_that_do_not_fit_together_alternate(depth: int) -> None:
    """Each holds rows and waits for more, so without a preemption neither could continue."""
    engine = ledger_engine(blocks=64, slots=6, depth=depth)
    params = SamplingParams(beams=5, n=5, max_tokens=12, seed=1)
    results = [Outputs(), Outputs()]
    for n, each in enumerate(results):
        engine.submit([n, 1, 2], params, each)
    drain(engine)
    assert [each.replies for each in results] == [searched([n, 1, 2], params) for n in range(2)]


def test_a_search_that_needs_more_blocks_than_there_are_ends() -> None:
    """Eight hypotheses of three blocks each, with four blocks in all."""
    engine = ledger_engine(blocks=4, slots=8, prefix_cache=False)
    params = SamplingParams(beams=8, n=8, max_tokens=30, seed=2)
    results = Outputs()
    engine.submit([5] * 20, params, results)
    drain(engine)
    assert results.replies == searched([5] * 20, params)
    assert engine.scheduler.preemptions > 8


def test_a_hypothesis_whose_blocks_are_loaded_gets_a_slot_from_an_idle_one() -> None:
    """All rows wait for their groups, and the only one that can go on has its blocks but no slot."""
    engine = EngineSetup(6, 4, 3, 8, 0, "fcfs", "swap", chunked=False, prefix_cache=False).engine()
    searches = [SamplingParams(max_tokens=count, seed=seed, beams=3) for count, seed in ((7, 3), (3, 1))]
    results = [Outputs() for _ in searches]
    for params, result in zip(searches, results, strict=True):
        engine.submit((0,), params, result)
    run(engine, 11, lambda _: None)
    for params, result in zip(searches, results, strict=True):
        assert result.replies[0] == searched((0,), params)[0]
