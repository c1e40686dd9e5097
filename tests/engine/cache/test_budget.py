"""A budget of tokens: blocks are evicted by score, and no reply depends on when or beside whom."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.params import SamplingParams
from engine.kv.eviction import TokenBudget
from engine.kv.window import GONE, held
from engine.serving.engine import Engine
from tests.engine.cache.test_resize import STEPS, resizes_at
from tests.engine.ledger import alone, drain, ledger_engine
from tests.engine.scheduling.test_company import Job, jobs, run_workload
from tests.engine.workloads import BLOCK, Workload, workloads
from tests.examples import examples
from tests.outputs import Output, Outputs

BUDGET = TokenBudget(tokens=96, sinks=4, block_size=BLOCK)
PROMPT = [n % 10 for n in range(200)]

budgets = st.builds(
    TokenBudget,
    tokens=st.sampled_from([96, 107, 128, 144]),
    sinks=st.sampled_from([0, 1, 16, 20]),
    block_size=st.just(BLOCK),
)


def ask(engine: Engine, prompt: list[int], count: int, seed: int = 0, **more: object) -> Output:
    reply = Output()
    engine.submit(prompt, SamplingParams(max_tokens=count, seed=seed, **more), reply)
    return reply


def long_workloads(budget: TokenBudget) -> st.SearchStrategy[Workload[Job]]:
    """Workloads whose requests may be longer than the whole cache."""
    return workloads([budget.peak + more for more in range(1, 8)], lambda place: jobs(250), most=6)


@examples(13)
@given(st.data(), budgets)
def test_other_requests_do_not_change_a_reply(data: st.DataObject, budget: TokenBudget) -> None:
    run_workload(data.draw(long_workloads(budget)), budget=budget)


@settings(max_examples=10)
@given(st.data(), budgets, STEPS)
def test_resizing_does_not_change_replies(
    data: st.DataObject, budget: TokenBudget, steps: dict[int, int]
) -> None:
    run_workload(data.draw(long_workloads(budget)), resizes_at(steps, budget.peak + 1), budget=budget)


@pytest.mark.soak
@settings(max_examples=1500)
@given(st.data(), budgets)
def test_other_requests_do_not_change_a_reply_in_many_examples(
    data: st.DataObject, budget: TokenBudget
) -> None:
    run_workload(data.draw(long_workloads(budget)), budget=budget)


@settings(max_examples=8)
@given(st.integers(0, 99), st.sampled_from(["ngram", "suffix"]), st.integers(0, 1))
def test_drafts_end_where_blocks_are_evicted(seed: int, kind: str, depth: int) -> None:
    engine = ledger_engine(blocks=BUDGET.peak + 5, budget=BUDGET, depth=depth, alphabet=3)
    prompts = [[seed % 3, *([1, 2] * 50)], [0] * 70]
    replies = [ask(engine, prompt, 120, seed, speculate=kind) for prompt in prompts]
    drain(engine)
    for prompt, reply in zip(prompts, replies, strict=True):
        assert reply.tokens == alone(prompt, 120, seed, alphabet=3, budget=BUDGET)


def test_a_reply_may_be_longer_than_the_cache() -> None:
    engine = ledger_engine(blocks=BUDGET.peak, budget=BUDGET, context=2000)
    reply, most = ask(engine, PROMPT, 500), 0
    while engine.busy:
        engine.step()
        engine.scheduler.check()
        most = max(most, engine.scheduler.pool.in_use)
    assert reply.tokens == alone(PROMPT, 500, budget=BUDGET)
    assert most == BUDGET.peak
    assert engine.scheduler.preemptions == 0


def test_a_shared_block_is_only_unlinked() -> None:
    """One request evicts blocks that a fork and the prefix cache still hold; these do not change."""
    engine = ledger_engine(blocks=40, budget=BUDGET, context=2000)
    first = ask(engine, PROMPT[:80], 150)
    while len(first.tokens) < 3:
        engine.step()
    [parent] = engine.scheduler.running
    child = engine.fork(parent.id, Output(), SamplingParams(max_tokens=5, seed=9))
    engine.step()
    shared, cells = list(engine.scheduler.requests[child].blocks[:5]), engine.runner.cells
    before = cells[shared].copy()
    waiting = engine.scheduler.requests[child]
    engine.scheduler.running.remove(waiting)  # it takes no part in the following steps
    while not parent.gone:
        engine.step()
    engine.scheduler.running.append(waiting)
    gone = [block for block in shared if block not in parent.blocks]
    assert gone and set(gone) <= set(held(waiting.blocks))
    assert (cells[shared] == before).all()
    drain(engine)
    assert first.tokens == alone(PROMPT[:80], 150, budget=BUDGET)


def test_only_blocks_from_before_the_first_eviction_are_found_again() -> None:
    engine = ledger_engine(blocks=60, budget=BUDGET, context=2000)
    reply = ask(engine, PROMPT, 100)
    drain(engine)
    pool, kv = engine.scheduler.pool, engine.scheduler.kv
    assert pool.cached == BUDGET.peak == len(kv._reports)
    turn, before = [*PROMPT, *reply.tokens, 5], engine.scheduler.cached_tokens
    again = ask(engine, turn, 40)
    drain(engine)
    assert again.tokens == alone(turn, 40, budget=BUDGET)
    assert engine.scheduler.cached_tokens - before == (BUDGET.peak - 1) * BLOCK


def test_a_fork_shares_blocks_after_an_eviction() -> None:
    engine = ledger_engine(blocks=60, budget=BUDGET, context=2000)
    first = ask(engine, PROMPT, 60)
    while len(first.tokens) < 20:
        engine.step()
    [parent] = engine.scheduler.running
    branch, used = Output(), engine.scheduler.pool.in_use
    engine.fork(parent.id, branch, SamplingParams(max_tokens=60, seed=9))
    assert parent.gone and engine.scheduler.pool.in_use == used
    generated = first.tokens[:20]
    drain(engine)
    assert branch.tokens == alone([*PROMPT, *generated], 40, 9, budget=BUDGET)


def test_blocks_are_evicted_once_the_scores_of_the_step_in_flight_have_arrived() -> None:
    """A fork of a prompt whose scores are in flight does not share its blocks; it would never get them."""
    engine = ledger_engine(blocks=60, budget=BUDGET, context=2000, depth=1, step_tokens=400)
    reply, branch, steps = ask(engine, PROMPT, 60), Output(), 0
    engine.step()
    [parent] = engine.scheduler.running
    assert parent.launched == 96 and not parent.evidence.reports
    engine.fork(parent.id, branch, SamplingParams(max_tokens=60, seed=9))
    assert not engine.scheduler.requests[parent.id + 1].blocks
    while engine.busy and steps < 1000:
        engine.step()
        engine.scheduler.check()
        steps += 1
    assert reply.tokens == alone(PROMPT, 60, budget=BUDGET)
    assert branch.tokens == alone(PROMPT, 60, 9, budget=BUDGET)


@pytest.mark.parametrize("depth", [0, 1])
def test_beams_and_samples_evict_the_same_blocks_in_a_tight_cache(depth: int) -> None:
    replies = []
    for blocks in (200, 14):
        engine = ledger_engine(blocks=blocks, budget=BUDGET, context=2000, depth=depth)
        search = ask(engine, PROMPT[:90], 70, beams=3)
        samples, beside = Outputs(), ask(engine, PROMPT[:60], 90)
        engine.submit(PROMPT[:100], SamplingParams(max_tokens=60, seed=3, n=2), samples)
        drain(engine)
        assert bool(engine.scheduler.preemptions) is (blocks == 14)
        replies.append((search.tokens, beside.tokens, [samples.choices[at].tokens for at in (0, 1)]))
    assert replies[0] == replies[1]
    assert replies[0][1] == alone(PROMPT[:60], 90, budget=BUDGET)
    assert all(len(each) == 60 for each in replies[0][2])


def test_the_lowest_scores_between_the_sinks_and_the_recent_blocks_go() -> None:
    budget = TokenBudget(tokens=8 * BLOCK, sinks=4, block_size=BLOCK)
    assert (budget.peak, budget.piece, budget.first, budget.recent) == (8, 2, 1, 2)
    assert budget.choose(np.array([0, 5, 3, 4, 3, 9, 0, 0])).tolist() == [2, 4]
    assert budget.choose(np.array([0, 1, 1, 1, 1, 1, 0, 0])).tolist() == [1, 2]
    dues = [at for at in range(300) if budget.due(at)]
    assert dues == [128, 160, 192, 224, 256, 288]
    assert all(at + budget.until_due(at) in [*dues, 320] for at in range(300))


def test_a_snapshot_shows_evicted_blocks() -> None:
    engine = ledger_engine(blocks=40, budget=BUDGET, context=2000, prefix_cache=False)
    ask(engine, PROMPT, 100)
    while engine.scheduler.step < 30:
        engine.step()
    shot = engine.snapshot()
    [request] = shot.requests
    assert request.gone == engine.scheduler.running[0].blocks.count(GONE) > 5
    assert len(request.blocks) == shot.blocks.in_use
    drain(engine)
