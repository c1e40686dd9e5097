"""An attention window: blocks that left it are released, and no reply depends on when."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.params import SamplingParams
from engine.kv.groups import BlockGroups
from engine.kv.window import GONE, Window, held
from engine.serving.engine import Engine
from tests.engine.ledger import alone, drain, ledger_engine
from tests.engine.scheduling.test_company import Job, jobs, run_workload
from tests.engine.workloads import BLOCK, Workload, workloads
from tests.examples import examples
from tests.outputs import Output

WINDOW = Window(size=32, sinks=4, block_size=BLOCK)
PROMPT = [n % 10 for n in range(200)]


def ask(engine: Engine, prompt: list[int], count: int, seed: int = 0, **more: object) -> Output:
    reply = Output()
    engine.submit(prompt, SamplingParams(max_tokens=count, seed=seed, **more), reply)
    return reply


windows = st.builds(
    Window,
    size=st.sampled_from([16, 17, 32, 45]),
    sinks=st.sampled_from([0, 1, 4, 16, 20]),
    block_size=st.just(BLOCK),
)


def long_workloads(window: Window) -> st.SearchStrategy[Workload[Job]]:
    """Workloads whose requests may be longer than the whole cache."""
    return workloads([window.peak + more for more in range(7)], lambda place: jobs(250), most=6)


@examples(13)
@given(st.data(), windows)
def test_other_requests_do_not_change_a_reply(data: st.DataObject, window: Window) -> None:
    run_workload(data.draw(long_workloads(window)), window=window)


@settings(max_examples=15)
@given(st.integers(0, 99), st.sampled_from(["ngram", "suffix"]), st.integers(0, 1))
def test_rejected_drafts_do_not_release_blocks_too_early(seed: int, kind: str, depth: int) -> None:
    engine = ledger_engine(blocks=WINDOW.peak + 4, window=WINDOW, depth=depth, alphabet=3)
    prompts = [[seed % 3, *([1, 2] * 30)], [0] * 70]
    replies = [ask(engine, prompt, 90, seed, speculate=kind) for prompt in prompts]
    drain(engine)
    for prompt, reply in zip(prompts, replies, strict=True):
        assert reply.tokens == alone(prompt, 90, seed, alphabet=3, window=WINDOW)


def test_a_reply_may_be_longer_than_the_cache() -> None:
    engine = ledger_engine(blocks=WINDOW.peak, window=WINDOW, context=2000)
    assert WINDOW.peak * BLOCK < 150
    reply, most = ask(engine, PROMPT, 500), 0
    while engine.busy:
        engine.step()
        engine.scheduler.check()
        if engine.scheduler.running and engine.scheduler.running[0].generated:
            most = max(most, engine.scheduler.pool.in_use)
    assert reply.tokens == alone(PROMPT, 500, window=WINDOW)
    assert most <= WINDOW.first + WINDOW.size // BLOCK + 1, "a decode holds more than the sinks and a window"
    assert engine.scheduler.preemptions == 0


def test_a_snapshot_shows_released_blocks() -> None:
    engine = ledger_engine(blocks=40, window=WINDOW, context=2000, prefix_cache=False)
    ask(engine, PROMPT, 100)
    while engine.scheduler.step < 20:
        engine.step()
    shot = engine.snapshot()
    [request] = shot.requests
    assert request.gone == engine.scheduler.running[0].blocks.count(GONE) > 5
    assert len(request.blocks) == shot.blocks.in_use
    left = shot.blocks.left.nonzero()[0].tolist()
    assert len(left) >= request.gone - 3  # some may be in use again
    assert not set(left) & set(request.blocks)
    assert (shot.blocks.refs[left] == 0).all()
    drain(engine)


def test_shared_and_published_blocks_survive_the_window() -> None:
    """One holder releases a fork's blocks and published blocks; the others keep them."""
    engine = ledger_engine(blocks=60, window=WINDOW, context=2000)
    first = ask(engine, PROMPT, 60)
    while len(first.tokens) < 3:
        engine.step()
    [parent] = engine.scheduler.running
    branch = Output()
    engine.fork(parent.id, branch, SamplingParams(max_tokens=60, seed=9))
    shared = set(held(parent.blocks))
    while len(first.tokens) < 50:
        engine.step()
        engine.scheduler.check()
    engine.abort(parent.id)
    assert shared & set(held(engine.scheduler.running[0].blocks))
    drain(engine)
    assert branch.tokens == alone([*PROMPT, *first.tokens[:3]], 57, 9, window=WINDOW)


def test_the_next_turn_uses_a_prefix_with_a_released_middle() -> None:
    engine = ledger_engine(blocks=WINDOW.peak + 3, window=WINDOW, context=2000)
    reply = ask(engine, PROMPT, 120)
    drain(engine)
    turn = [*PROMPT, *reply.tokens, 5, 6, 7]
    before = engine.scheduler.cached_tokens
    again = ask(engine, turn, 40)
    drain(engine)
    assert again.tokens == alone(turn, 40, window=WINDOW)
    assert engine.scheduler.cached_tokens - before >= len(turn) - 2 * BLOCK


def test_admission_counts_only_the_blocks_of_the_window() -> None:
    """Several prompts run together in a cache too small for all blocks of any one of them."""
    engine = ledger_engine(blocks=2 * WINDOW.peak, window=WINDOW, context=2000, slots=4, prefix_cache=False)
    prompts = [[n, *PROMPT, *PROMPT] for n in range(4)]
    assert len(prompts[0]) > engine.scheduler.pool.size * BLOCK
    replies = [ask(engine, prompt, 50) for prompt in prompts]
    most = 0
    while engine.busy:
        engine.step()
        engine.scheduler.check()
        most = max(most, len(engine.scheduler.running))
    assert most >= 2
    for prompt, reply in zip(prompts, replies, strict=True):
        assert reply.tokens == alone(prompt, 50, window=WINDOW)


@pytest.mark.parametrize(
    ("there", "count"),
    [
        ("111111", 6),
        ("100111", 6),
        ("100011", 6),
        ("100001", 1),
        ("011111", 0),
        ("110000", 2),
        ("101110", 5),
        ("", 0),
        ("1", 1),
    ],
)
def test_longest_prefix_found_with_a_window(there: str, count: int) -> None:
    """One block of sinks, and a next token that attends to the last two blocks."""
    groups = BlockGroups(BLOCK, (Window(size=33, sinks=4, block_size=BLOCK),))
    assert groups.longest(len(there), lambda at: there[at] == "1") == count
