"""Invariant 1 over random workloads: whatever shares the engine changes timing, never output.

Run on the ledger, whose every token depends on every cell that its row reads; models are tested beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core import Engine
from engine.params import SamplingParams
from engine.request import Finish
from engine.scheduling.window import Window
from tests.engine.ledger import Clock, Reply, alone, drain, ledger_engine


@dataclass(frozen=True)
class Job:
    """One request of a workload."""

    prompt: tuple[int, ...]
    count: int
    at: int  # the step when it comes
    priority: int
    deadline: float | None
    abort_after: int | None  # steps after it came
    preempt_after: int | None
    fork_after: int | None
    salt: bytes
    seed: int


@dataclass(frozen=True)
class Workload:
    jobs: tuple[Job, ...]
    blocks: int
    host: int
    slots: int
    step_tokens: int
    depth: int
    policy: str
    preemption: str
    chunked: bool
    prefix_cache: bool


BLOCK = 16


@st.composite
def jobs(draw: st.DrawFn, room: int) -> Job:
    # Prompts begin alike, so that prefixes are found, and end anywhere in a block.
    shared = draw(st.sampled_from([0, 0, 15, 16, 17, 32, 40]))
    own = draw(st.lists(st.integers(0, 9), min_size=1, max_size=30))
    prompt = [*([7] * shared), *own][: room - 1]
    after = st.one_of(st.none(), st.none(), st.integers(0, 12))
    return Job(
        prompt=tuple(prompt),
        count=draw(st.integers(1, min(40, room - len(prompt)))),
        at=draw(st.integers(0, 15)),
        priority=draw(st.integers(0, 2)),
        deadline=draw(st.one_of(st.none(), st.floats(0, 3))),
        abort_after=draw(after),
        preempt_after=draw(after),
        fork_after=draw(after),
        salt=draw(st.sampled_from([b"", b"", b"other"])),
        seed=draw(st.integers(0, 3)),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    blocks = draw(st.sampled_from([6, 6, 7, 9, 16, 40]))
    slots = draw(st.integers(1, 8))
    return Workload(
        jobs=tuple(draw(st.lists(jobs(min(blocks * BLOCK, 90)), min_size=1, max_size=10))),
        blocks=blocks,
        host=draw(st.sampled_from([0, 4, 20])),
        slots=slots,
        step_tokens=draw(st.sampled_from([8, 17, 32, 200])),
        depth=draw(st.integers(0, 1)),
        policy=draw(st.sampled_from(["fcfs", "priority", "latency"])),
        preemption=draw(st.sampled_from(["auto", "recompute", "swap"])),
        chunked=draw(st.booleans()),
        prefix_cache=draw(st.booleans()),
    )


def nothing(engine: Engine, step: int) -> None:
    """Leaves the engine as it is."""


@settings(max_examples=400)
@given(workloads())
def test_company_changes_nothing(work: Workload) -> None:
    run_workload(work)


def run_workload(
    work: Workload, meddle: Callable[[Engine, int], None] = nothing, window: Window | None = None
) -> None:
    """To the end, with a check after every step; `meddle` is called before each with the engine."""
    engine = ledger_engine(
        blocks=work.blocks,
        host=work.host,
        slots=work.slots,
        step_tokens=work.step_tokens,
        depth=work.depth,
        policy=work.policy,
        clock=Clock(),
        preemption=work.preemption,
        chunked_prefill=work.chunked,
        prefix_cache=work.prefix_cache,
        window=window,
    )
    replies: list[tuple[Job, Reply, list[int]]] = []  # with what the engine must say
    ids: dict[Job, int] = {}
    for step in range(16 + 13):
        for job in work.jobs:
            if job.at == step:
                reply = Reply()
                params = SamplingParams(max_tokens=job.count, seed=job.seed)
                ids[job] = engine.submit(
                    job.prompt, params, reply, priority=job.priority, deadline=job.deadline, salt=job.salt
                )
                replies.append((job, reply, alone(job.prompt, job.count, job.seed, window=window)))
        for job, id in ids.items():
            request = engine.scheduler.requests.get(id)
            if request is None:
                continue
            since = step - job.at
            if since == job.preempt_after:
                engine.preempt(id)
            if since == job.fork_after:
                branch, said = Reply(), request.tokens[request.prompt_len :]
                tail = alone(request.tokens, job.count - len(said), job.seed + 10, window=window)
                replies.append((job, branch, tail))
                engine.fork(id, branch, SamplingParams(max_tokens=job.count, seed=job.seed + 10))
            if since == job.abort_after:
                engine.abort(id)
        meddle(engine, step)
        engine.step()
        engine.clock.now += 0.05
        engine.scheduler.check()
    drain(engine)

    for job, reply, expected in replies:
        assert reply.last is not None, "a request that never ended"
        if reply.last.finish is Finish.ABORTED:
            assert job.abort_after is not None
            assert reply.tokens == expected[: len(reply.tokens)]
        else:
            assert reply.last.finish is Finish.LENGTH
            assert reply.tokens == expected
    assert engine.scheduler.pool.in_use == engine.scheduler.host.in_use == 0
    assert (
        not engine.scheduler.requests and not engine.scheduler.running and not len(engine.scheduler.waiting)
    )
