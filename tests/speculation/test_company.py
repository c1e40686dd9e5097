"""Invariant 1 with drafts of all kinds in one batch: they change how many tokens a step gives, never which.

Run on the ledger with a small vocabulary, so that drafts are often right and often wrong.
"""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.events import Transferred
from engine.api.params import SPECULATION, SamplingParams
from engine.api.request import Finish
from engine.serving.engine import Engine
from engine.speculation.gain import Prices
from tests.engine.ledger import alone, drain, ledger_engine
from tests.engine.workloads import AFTER, Workload, prompts, run, workloads
from tests.examples import examples
from tests.outputs import Output

ALPHABET = 3
KINDS = ("", *SPECULATION)
PROMPT = [1] * 12


@dataclass(frozen=True)
class Job:
    """One request, and what happens to it; the `after` fields count steps from its submission."""

    prompt: tuple[int, ...]
    count: int
    seed: int
    kind: str
    draft_tokens: int
    at: int
    abort_after: int | None
    preempt_after: int | None
    fork_after: int | None
    switch_after: int | None
    other: str  # the kind of drafts to switch to
    shorten_after: int | None  # then max_tokens is set to the length so far plus `more`
    more: int


@st.composite
def jobs(draw: st.DrawFn, room: int) -> Job:
    prompt = draw(prompts(room, alphabet=ALPHABET, common=1))
    return Job(
        prompt=prompt,
        count=draw(st.integers(1, min(60, room - len(prompt)))),
        seed=draw(st.integers(0, 3)),
        kind=draw(st.sampled_from(KINDS)),
        draft_tokens=draw(st.sampled_from([0, 0, 1, 4, 16])),
        at=draw(st.integers(0, 8)),
        abort_after=draw(AFTER),
        preempt_after=draw(AFTER),
        fork_after=draw(AFTER),
        switch_after=draw(AFTER),
        other=draw(st.sampled_from(KINDS)),
        shorten_after=draw(st.one_of(st.none(), AFTER)),
        more=draw(st.integers(1, 5)),
    )


class FreeDrafts(Prices):
    """Drafts cost nothing, however long steps take, and no step without drafts is asked for."""

    def wants_plain(self, rows: int) -> bool:
        return False

    def of(self, kind: str, rows: int) -> float:
        return 0.0


@examples(13)
@given(workloads([6, 7, 9, 40], lambda place: jobs(min(place.tokens, 90)), most=8))
def test_drafts_do_not_change_a_reply(work: Workload[Job]) -> None:
    engine = work.place.engine(alphabet=ALPHABET)
    engine.scheduler.speculator.prices = FreeDrafts()
    replies: list[tuple[Job, Output, list[int]]] = []
    ids: dict[Job, int] = {}

    def before(step: int) -> None:
        for job in work.jobs:
            if job.at == step:
                reply = Output()
                params = SamplingParams(
                    max_tokens=job.count, seed=job.seed, speculate=job.kind, draft_tokens=job.draft_tokens
                )
                ids[job] = engine.submit(job.prompt, params, reply)
                replies.append((job, reply, alone(job.prompt, job.count, job.seed, ALPHABET)))
        for job, id in ids.items():
            if id in engine.scheduler.requests:
                meddle(engine, job, id, step - job.at, replies)

    run(engine, 8 + 13, before)
    for job, reply, expected in replies:
        assert reply.last is not None, "a request did not end"
        if reply.last.finish is Finish.ABORTED or job.shorten_after is not None:
            assert reply.tokens == expected[: len(reply.tokens)]
        else:
            assert reply.last.finish is Finish.LENGTH
            assert reply.tokens == expected


def meddle(
    engine: Engine, job: Job, id: int, since: int, replies: list[tuple[Job, Output, list[int]]]
) -> None:
    """Apply the job's changes that are due `since` steps after its submission."""
    request = engine.scheduler.requests[id]
    if since == job.preempt_after:
        engine.preempt(id)
    if since == job.fork_after:
        branch, count = Output(), request.generated
        tail = alone(request.tokens, job.count - count, job.seed + 10, ALPHABET)
        replies.append((job, branch, tail))
        engine.fork(id, branch, request.params.changed(max_tokens=job.count, seed=job.seed + 10))
    if since == job.switch_after:
        engine.update(id, speculate=job.other)
    if since == job.shorten_after and request.generated + job.more < job.count:
        engine.update(id, max_tokens=request.generated + job.more)
    if since == job.abort_after:
        engine.abort(id)


def with_drafts_in_flight(seed: int) -> tuple[Engine, int, Output]:
    """Return an engine at a moment when steps run ahead and a row of drafts is not committed."""
    engine = ledger_engine(depth=1, host=20, alphabet=ALPHABET, preemption="swap")
    engine.scheduler.speculator.prices = FreeDrafts()
    reply, params = Output(), SamplingParams(max_tokens=60, seed=seed, speculate="draft", draft_tokens=16)
    id = engine.submit(PROMPT, params, reply)
    request = engine.scheduler.requests[id]
    while request.launched <= request.known:
        engine.step()
    return engine, id, reply


@pytest.mark.parametrize("seed", range(4))
def test_a_swap_does_not_store_drafts(seed: int) -> None:
    """The last blocks hold only drafts, which have no block name, as they may be wrong."""
    engine, id, reply = with_drafts_in_flight(seed)
    gone: list[Transferred] = []
    engine.bus.subscribe(lambda event: gone.append(event) if isinstance(event, Transferred) else None)
    engine.preempt(id)
    drain(engine)
    assert gone and not gone[0].load and not any(each.error for each in gone)
    assert reply.tokens == alone(PROMPT, 60, seed, ALPHABET)


def test_one_token_of_a_run_in_flight_uses_the_old_seed() -> None:
    """Tokens sampled after the drafts with the old seed are dropped."""
    longer = 0
    for seed in range(4):
        engine, id, reply = with_drafts_in_flight(seed)
        engine.update(id, seed=7)
        drain(engine)
        first, second = reply.tokens[:2], reply.tokens[2:]
        assert first == alone(PROMPT, 2, seed, ALPHABET)
        assert second == alone([*PROMPT, *first], 58, 7, ALPHABET)
        longer += alone(PROMPT, 60, seed, ALPHABET)[2] != second[0]
    assert longer, "the old and the new seed give the same tokens"
