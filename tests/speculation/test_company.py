"""Invariant 1 with drafts of all kinds in one batch: they change how many tokens a step brings, never which.

On the ledger, which says few different tokens, so that drafts are often right and often wrong.
"""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core import Engine
from engine.params import SPECULATION, SamplingParams
from engine.request import Finish
from engine.speculation.gain import Prices
from tests.engine.ledger import Clock, Reply, alone, drain, ledger_engine

ALPHABET = 3
KINDS = ("", *SPECULATION)


@dataclass(frozen=True)
class Job:
    """One request, and what happens to it so many steps after it came."""

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
    other: str  # the kind that it is switched to
    shorten_after: int | None  # its max_tokens go down to what it has and this many more
    more: int


@dataclass(frozen=True)
class Workload:
    jobs: tuple[Job, ...]
    blocks: int
    host: int
    slots: int
    step_tokens: int
    depth: int
    preemption: str
    chunked: bool
    prefix_cache: bool


@st.composite
def jobs(draw: st.DrawFn, room: int) -> Job:
    shared = draw(st.sampled_from([0, 0, 15, 16, 17, 32]))
    own = draw(st.lists(st.integers(0, ALPHABET - 1), min_size=1, max_size=30))
    prompt = [*([1] * shared), *own][: room - 1]
    after = st.one_of(st.none(), st.none(), st.integers(0, 12))
    return Job(
        prompt=tuple(prompt),
        count=draw(st.integers(1, min(60, room - len(prompt)))),
        seed=draw(st.integers(0, 3)),
        kind=draw(st.sampled_from(KINDS)),
        draft_tokens=draw(st.sampled_from([0, 0, 1, 4, 16])),
        at=draw(st.integers(0, 8)),
        abort_after=draw(after),
        preempt_after=draw(after),
        fork_after=draw(after),
        switch_after=draw(after),
        other=draw(st.sampled_from(KINDS)),
        shorten_after=draw(st.one_of(st.none(), after)),
        more=draw(st.integers(1, 5)),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    blocks = draw(st.sampled_from([6, 7, 9, 40]))
    return Workload(
        jobs=tuple(draw(st.lists(jobs(min(blocks * 16, 90)), min_size=1, max_size=8))),
        blocks=blocks,
        host=draw(st.sampled_from([0, 4, 20])),
        slots=draw(st.integers(1, 8)),
        step_tokens=draw(st.sampled_from([8, 17, 32, 200])),
        depth=draw(st.integers(0, 1)),
        preemption=draw(st.sampled_from(["auto", "recompute", "swap"])),
        chunked=draw(st.booleans()),
        prefix_cache=draw(st.booleans()),
    )


class Free(Prices):
    """Never wants a step without drafts, so that as many as can be are tried with some."""

    def wants_plain(self, rows: int) -> bool:
        return False


@settings(max_examples=100)
@given(workloads())
def test_drafts_change_nothing(work: Workload) -> None:
    engine = ledger_engine(
        blocks=work.blocks,
        host=work.host,
        slots=work.slots,
        step_tokens=work.step_tokens,
        depth=work.depth,
        clock=Clock(),
        alphabet=ALPHABET,
        preemption=work.preemption,
        chunked_prefill=work.chunked,
        prefix_cache=work.prefix_cache,
    )
    engine.scheduler.speculator.prices = Free()
    replies: list[tuple[Job, Reply, list[int]]] = []
    ids: dict[Job, int] = {}
    for step in range(8 + 13):
        for job in work.jobs:
            if job.at == step:
                reply = Reply()
                params = SamplingParams(
                    max_tokens=job.count, seed=job.seed, speculate=job.kind, draft_tokens=job.draft_tokens
                )
                ids[job] = engine.submit(job.prompt, params, reply)
                replies.append((job, reply, alone(job.prompt, job.count, job.seed, ALPHABET)))
        for job, id in ids.items():
            if id in engine.scheduler.requests:
                meddle(engine, job, id, step - job.at, replies)
        engine.step()
        engine.clock.now += 0.05
        engine.scheduler.check()
    drain(engine)

    for job, reply, expected in replies:
        assert reply.last is not None, "a request that never ended"
        if reply.last.finish is Finish.ABORTED or job.shorten_after is not None:
            assert reply.tokens == expected[: len(reply.tokens)]
        else:
            assert reply.last.finish is Finish.LENGTH
            assert reply.tokens == expected
    assert engine.scheduler.pool.in_use == engine.scheduler.host.in_use == 0
    assert engine.scheduler.waiting.tokens == 0


def meddle(
    engine: Engine, job: Job, id: int, since: int, replies: list[tuple[Job, Reply, list[int]]]
) -> None:
    """What happens to a living request so many steps after it came."""
    request = engine.scheduler.requests[id]
    if since == job.preempt_after:
        engine.preempt(id)
    if since == job.fork_after:
        branch, said = Reply(), request.generated
        tail = alone(request.tokens, job.count - said, job.seed + 10, ALPHABET)
        replies.append((job, branch, tail))
        engine.fork(id, branch, request.params.changed(max_tokens=job.count, seed=job.seed + 10))
    if since == job.switch_after:
        engine.update(id, speculate=job.other)
    if since == job.shorten_after and request.generated + job.more < job.count:
        engine.update(id, max_tokens=request.generated + job.more)
    if since == job.abort_after:
        engine.abort(id)
