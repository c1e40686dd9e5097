"""Invariant 1 over random workloads: batching with other requests changes timing, never output.

Run on the ledger, where every token depends on every cell that its row reads. tests/runner does the same on
real models.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.params import SamplingParams
from engine.api.request import Finish
from engine.kv.eviction import TokenBudget
from engine.kv.groups import BlockGroups
from engine.kv.tiers.tier import Tier
from engine.kv.window import Window
from engine.serving.engine import Engine
from tests.engine.ledger import alone
from tests.engine.workloads import AFTER, Workload, prompts, run, workloads
from tests.examples import examples
from tests.outputs import Output


@dataclass(frozen=True)
class Job:
    """One request of a workload."""

    prompt: tuple[int, ...]
    count: int
    at: int  # the step at which it is submitted
    priority: int
    deadline: float | None
    abort_after: int | None  # steps after it was submitted
    preempt_after: int | None
    fork_after: int | None
    salt: bytes
    seed: int


@st.composite
def jobs(draw: st.DrawFn, room: int) -> Job:
    prompt = draw(prompts(room))
    return Job(
        prompt=prompt,
        count=draw(st.integers(1, min(40, room - len(prompt)))),
        at=draw(st.integers(0, 15)),
        priority=draw(st.integers(0, 2)),
        deadline=draw(st.one_of(st.none(), st.floats(0, 3))),
        abort_after=draw(AFTER),
        preempt_after=draw(AFTER),
        fork_after=draw(AFTER),
        salt=draw(st.sampled_from([b"", b"", b"other"])),
        seed=draw(st.integers(0, 3)),
    )


any_workload = workloads([6, 6, 7, 9, 16, 40], lambda place: jobs(min(place.tokens, 90)), most=10)


def nothing(engine: Engine, step: int) -> None:
    """The default for `meddle`."""


@examples(15)
@given(any_workload)
def test_other_requests_do_not_change_a_reply(work: Workload[Job]) -> None:
    run_workload(work)


@pytest.mark.soak
@settings(max_examples=2000)
@given(any_workload)
def test_other_requests_do_not_change_a_reply_in_many_examples(work: Workload[Job]) -> None:
    run_workload(work)


def run_workload(
    work: Workload[Job],
    meddle: Callable[[Engine, int], None] = nothing,
    window: Window | None = None,
    budget: TokenBudget | None = None,
    groups: BlockGroups | None = None,
    below: Sequence[Tier] = (),
) -> None:
    """Run a workload and compare each reply with the oracle.

    `meddle` is called before each step; `below` lists the tiers below host memory.
    """
    engine = work.place.engine(window=window, budget=budget, groups=groups, below=below)
    replies: list[tuple[Job, Output, list[int]]] = []  # with the expected tokens
    ids: dict[Job, int] = {}

    def before(step: int) -> None:
        for job in work.jobs:
            if job.at == step:
                reply = Output()
                params = SamplingParams(max_tokens=job.count, seed=job.seed)
                ids[job] = engine.submit(
                    job.prompt, params, reply, priority=job.priority, deadline=job.deadline, salt=job.salt
                )
                replies.append(
                    (job, reply, alone(job.prompt, job.count, job.seed, window=window, budget=budget))
                )
        for job, id in ids.items():
            request = engine.scheduler.requests.get(id)
            if request is None:
                continue
            since = step - job.at
            if since == job.preempt_after:
                engine.preempt(id)
            if since == job.fork_after:
                branch, generated = Output(), request.tokens[request.prompt_len :]
                more = job.count - len(generated)
                tail = alone(request.tokens, more, job.seed + 10, window=window, budget=budget)
                replies.append((job, branch, tail))
                engine.fork(id, branch, SamplingParams(max_tokens=job.count, seed=job.seed + 10))
            if since == job.abort_after:
                engine.abort(id)
        meddle(engine, step)

    run(engine, 16 + 13, before)
    for job, reply, expected in replies:
        assert reply.last is not None, "a request did not end"
        if reply.last.finish is Finish.ABORTED:
            assert job.abort_after is not None
            assert reply.tokens == expected[: len(reply.tokens)]
        else:
            assert reply.last.finish is Finish.LENGTH
            assert reply.tokens == expected
