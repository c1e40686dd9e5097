"""Groups of layers with blocks of their own: some keep all tokens, others those of a window."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.cache_spec import CacheSpec, StateSpec
from engine.api.params import SamplingParams
from engine.api.request import Finish
from engine.execution.protocol import StepResult
from engine.kv.groups import BlockGroups, grouped
from engine.kv.tables import BlockTables, TableMirror
from engine.kv.window import GONE, Window, held
from engine.serving.engine import Engine
from tests.engine.byte_tier import ByteTier
from tests.engine.cache.test_resize import STEPS, resizes_at
from tests.engine.cache.test_tiers import compute_in, tiers
from tests.engine.ledger import alone, drain, ledger_engine
from tests.engine.scheduling.test_company import Job, jobs, run_workload
from tests.engine.workloads import BLOCK, Workload, workloads
from tests.examples import examples
from tests.outputs import Output

NARROW = Window(size=32, sinks=0, block_size=BLOCK, piece=64)
GROUPS = BlockGroups(BLOCK, (None, NARROW, NARROW))
PROMPT = [n % 10 for n in range(300)]
ROOM = 100  # tokens of a request of a workload

windows = st.builds(
    Window,
    size=st.sampled_from([16, 17, 32, 45]),
    sinks=st.sampled_from([0, 0, 4]),
    block_size=st.just(BLOCK),
    piece=st.sampled_from([45, 64]),
)


@st.composite
def block_groups(draw: st.DrawFn) -> BlockGroups:
    """One group or two keep all tokens."""
    kinds = st.lists(st.one_of(st.none(), windows), max_size=2)
    first, window, *rest = [None, draw(windows), *draw(kinds)]
    return BlockGroups(BLOCK, (first, *draw(st.permutations([window, *rest]))))


def least(groups: BlockGroups, tokens: int) -> int:
    """The blocks that a request of so many tokens needs."""
    return next(count for count in range(1, 1000) if groups.tokens_in(count) >= tokens)


def long_workloads(groups: BlockGroups) -> st.SearchStrategy[Workload[Job]]:
    blocks = [least(groups, ROOM) + more for more in (0, 1, 3, 10, 40)]
    return workloads(blocks, lambda place: jobs(ROOM), most=8)


def ask(engine: Engine, prompt: Sequence[int], count: int, seed: int = 0, **more: object) -> Output:
    reply = Output()
    engine.submit(prompt, SamplingParams(max_tokens=count, seed=seed, **more), reply)
    return reply


@examples(20)
@given(st.data(), block_groups())
def test_other_requests_do_not_change_a_reply(data: st.DataObject, groups: BlockGroups) -> None:
    run_workload(data.draw(long_workloads(groups)), groups=groups)


@pytest.mark.soak
@settings(max_examples=2000)
@given(st.data(), block_groups())
def test_other_requests_do_not_change_a_reply_in_many_examples(
    data: st.DataObject, groups: BlockGroups
) -> None:
    run_workload(data.draw(long_workloads(groups)), groups=groups)


@examples(8)
@given(st.data(), block_groups(), STEPS)
def test_resizing_does_not_change_replies(
    data: st.DataObject, groups: BlockGroups, steps: dict[int, int]
) -> None:
    meddle = resizes_at(steps, least(groups, ROOM))
    run_workload(data.draw(long_workloads(groups)), meddle, groups=groups)


@pytest.mark.parametrize("cached", [False, True])
@examples(10)
@given(data=st.data(), groups=block_groups(), tier=tiers())
def test_tiers_do_not_change_replies(
    cached: bool, data: st.DataObject, groups: BlockGroups, tier: ByteTier
) -> None:
    def pass_time(engine: Engine, step: int) -> None:
        if step % 5 == 4:
            for request in engine.scheduler.running:
                engine.preempt(request.id)
        if cached:
            compute_in(engine, 1.0, 64)

    work = data.draw(long_workloads(groups))
    place = replace(work.place, preemption="swap", prefix_cache=cached)
    run_workload(replace(work, place=place), pass_time, groups=groups, below=[tier])


@examples(8)
@given(st.integers(0, 99), st.sampled_from(["ngram", "suffix"]), st.integers(0, 1))
def test_rejected_drafts_do_not_release_blocks_too_early(seed: int, kind: str, depth: int) -> None:
    engine = ledger_engine(blocks=least(GROUPS, 200) + 9, groups=GROUPS, depth=depth, alphabet=3)
    prompts = [[seed % 3, *([1, 2] * 30)], [0] * 70]
    replies = [ask(engine, prompt, 90, seed, speculate=kind) for prompt in prompts]
    drain(engine)
    for prompt, reply in zip(prompts, replies, strict=True):
        assert reply.tokens == alone(prompt, 90, seed, alphabet=3)


def test_a_group_with_a_window_holds_the_blocks_of_its_window() -> None:
    engine = ledger_engine(blocks=200, groups=GROUPS, context=2000)
    reply, most = ask(engine, PROMPT, 400), 0
    while engine.busy:
        engine.step()
        engine.scheduler.check()
        if engine.scheduler.running and engine.scheduler.running[0].generated > 1:
            [request] = engine.scheduler.running
            rest = engine.scheduler.pool.in_use - len(request.blocks[:: GROUPS.count])
            most = max(most, rest)
    assert reply.tokens == alone(PROMPT, 400)
    assert most <= 2 * (NARROW.size // BLOCK + 1), "a decode holds more than two windows"
    assert engine.scheduler.preemptions == 0


def test_more_requests_fit_than_with_all_tokens_in_every_group() -> None:
    """The longest request, and as many as fit at once."""
    room, whole = 90, BlockGroups(BLOCK, (None, None, None))
    assert whole.tokens_in(room) == 30 * BLOCK
    assert GROUPS.tokens_in(room) == (room - 2 * NARROW.peak) * BLOCK > 2 * whole.tokens_in(room)
    together = []
    for groups in (GROUPS, whole):
        engine = ledger_engine(blocks=room, groups=groups, context=2000, slots=8, prefix_cache=False)
        replies = [ask(engine, [n, *PROMPT[:200]], 60, n) for n in range(8)]
        most = 0
        while engine.busy:
            engine.step()
            engine.scheduler.check()
            most = max(most, len(engine.scheduler.running))
        for n, reply in enumerate(replies):
            assert reply.tokens == alone([n, *PROMPT[:200]], 60, n)
        together.append(most)
    assert together == [4, 2]


def test_forks_share_blocks_of_every_group_and_copy_each_tail() -> None:
    engine = ledger_engine(blocks=120, groups=GROUPS, context=2000)
    first = ask(engine, PROMPT, 60)
    while len(first.tokens) < 3:
        engine.step()
    [parent] = engine.scheduler.running
    branch, copies = Output(), list[tuple[int, int]]()
    engine.fork(parent.id, branch, SamplingParams(max_tokens=60, seed=9))
    shared = set(held(parent.blocks))
    while engine.busy:
        engine.step()
        engine.scheduler.check()
        copies += engine.runner.steps[-1].copies
    assert len(copies) == GROUPS.count and {source for source, _ in copies} <= shared
    assert first.tokens == alone(PROMPT, 60)
    assert branch.tokens == alone([*PROMPT, *first.tokens[:3]], 57, 9)


def test_the_next_turn_starts_from_all_blocks_of_one_group_and_the_last_of_the_others() -> None:
    engine = ledger_engine(blocks=least(GROUPS, 600), groups=GROUPS, context=2000)
    reply = ask(engine, PROMPT, 120)
    drain(engine)
    turn = [*PROMPT, *reply.tokens, 5, 6, 7]
    again = ask(engine, turn, 40)
    engine.step()
    [request] = engine.scheduler.running
    assert request.cached_tokens >= len(turn) - 2 * BLOCK
    assert GONE not in request.blocks[:: GROUPS.count] and request.gone > 20
    drain(engine)
    assert again.tokens == alone(turn, 40)


def test_a_prefix_whose_window_was_evicted_is_found_up_to_one_that_was_not() -> None:
    engine = ledger_engine(blocks=200, groups=GROUPS, context=2000)
    ask(engine, PROMPT, 5)
    drain(engine)
    kv = engine.scheduler.kv
    probe = ask(engine, PROMPT, 1)
    request = next(iter(engine.scheduler.requests.values()))
    hits = kv.find(request)
    assert len(hits) // 3 == (len(PROMPT) - 1) // BLOCK
    newest = len(hits) // 3 - 1
    engine.scheduler.pool.forget([hits[3 * newest + 1]])
    assert len(kv.find(request)) // 3 == newest  # the block before it ends with a window that is there
    engine.scheduler.pool.forget([hits[3 * 4]])
    assert len(kv.find(request)) // 3 == 4
    drain(engine)
    assert probe.tokens == alone(PROMPT, 1)


def test_a_preempted_request_resumes_from_what_it_held() -> None:
    """Its blocks are stored in host memory, those of the windows without the ones that had left."""
    engine = ledger_engine(
        blocks=200, host=200, groups=GROUPS, context=2000, preemption="swap", prefix_cache=False
    )
    reply = ask(engine, PROMPT, 60)
    while len(reply.tokens) < 20:
        engine.step()
    [request] = engine.scheduler.running
    kept, launched = len(held(request.blocks)), request.launched
    engine.preempt(request.id)
    engine.step()
    assert request.stored is not None
    assert len(request.stored.names) <= kept < len(PROMPT) // BLOCK * 3
    while request.slot < 0:
        engine.step()
    assert request.launched >= launched, "it was computed again"
    drain(engine)
    assert reply.tokens == alone(PROMPT, 60)


def test_blocks_of_a_failed_step_are_not_found_after_they_left_a_window() -> None:
    """Those of a step in flight are published when they leave. A request that starts from them fails, too."""
    engine = ledger_engine(blocks=200, groups=GROUPS, context=2000, depth=1, step_tokens=64)
    kv, pool = engine.scheduler.kv, engine.scheduler.pool
    reply = ask(engine, PROMPT, 5)
    engine.step()
    engine.step()  # the second step is in flight; the first one's blocks have left the window
    [request] = engine.scheduler.running
    assert request.gone and kv.still_cached(request), "nothing was published before it left"
    collect = engine.runner.collect

    def failing(handle: StepResult) -> StepResult:
        engine.runner.collect = collect  # type: ignore[method-assign]
        raise RuntimeError("simulated failure")

    engine.runner.collect = failing  # type: ignore[method-assign]
    chain = list(request.chain)
    drain(engine)
    assert reply.last is not None and reply.last.finish is Finish.FAILED
    assert not any(pool.find(kv.key(chain, at)) for at in range(3 * len(chain)))
    again = ask(engine, PROMPT, 5)
    drain(engine)
    assert again.tokens == alone(PROMPT, 5)


@pytest.mark.parametrize("depth", [0, 1])
def test_what_leaves_a_window_beside_its_step_can_be_found(depth: int) -> None:
    """The blocks of a prompt of one step leave before the step has ended."""
    groups = BlockGroups(BLOCK, (None, replace(NARROW, piece=300)))
    engine = ledger_engine(blocks=200, groups=groups, context=2000, depth=depth, step_tokens=500)
    ask(engine, PROMPT[:200], 5)
    drain(engine)
    ask(engine, PROMPT[:200], 5)
    engine.step()
    [request] = engine.scheduler.running
    assert request.cached_tokens == 192
    drain(engine)


@settings(max_examples=60)
@given(block_groups(), st.data())
def test_the_longest_prefix_is_that_of_a_plain_search(groups: BlockGroups, data: st.DataObject) -> None:
    most = data.draw(st.integers(0, 9))
    there = data.draw(st.lists(st.booleans(), min_size=most * groups.count, max_size=most * groups.count))

    def startable(count: int) -> bool:
        needed = (
            (block, group)
            for block in range(count)
            for group, window in enumerate(groups.windows)
            if window is None
            or any(
                at < window.sinks or at > count * BLOCK - window.size
                for at in range(block * BLOCK, block * BLOCK + BLOCK)
            )
        )
        return all(there[block * groups.count + group] for block, group in needed)

    expected = max(count for count in range(most + 1) if startable(count))
    assert groups.longest(most, there.__getitem__) == expected


@settings(max_examples=60)
@given(block_groups(), st.integers(1, 200))
def test_the_longest_request_of_a_cache_is_that_of_a_plain_search(groups: BlockGroups, blocks: int) -> None:
    longest = 0
    while groups.most(groups.blocks_for(longest + BLOCK)) <= blocks:
        longest += BLOCK
    assert 0 <= longest - groups.tokens_in(blocks) <= 2 * groups.count * NARROW.peak * BLOCK
    assert groups.most(groups.blocks_for(groups.tokens_in(blocks))) <= blocks


def test_tables_hold_each_group_in_a_row_of_its_own() -> None:
    tables, mirror = BlockTables(2, 12, 3), TableMirror(2, 12, 3)
    slots = [tables.open([1, 2, 3, 4, 5, 6]), tables.open([])]
    tables.write(slots[1], 0, [7, 8, 9])
    tables.write(slots[0], 7, [10])
    mirror.apply(tables.take_changes())
    assert [grid[slots[0], :3].tolist() for grid in mirror.grids] == [[1, 4, 0], [2, 5, 10], [3, 6, 0]]
    assert [grid[slots[1], 0] for grid in mirror.grids] == [7, 8, 9]
    assert tables.listed(slots[0], 6) == [1, 2, 3, 4, 5, 6]


def spec(window: int | None = None, **more: object) -> CacheSpec:
    return CacheSpec(heads=2, kv_heads=1, key_dim=8, value_dim=8, scale=1.0, window=window, **more)


def test_layers_are_grouped_by_what_they_keep() -> None:
    """Gemma 3 4B has 29 layers with a window and 5 without."""
    specs = [spec(None if index % 6 == 5 else 1024) for index in range(34)]
    groups = grouped(specs, BLOCK, 8192, 2048)
    assert groups is not None
    window = Window(1024, 0, BLOCK, 2048)
    assert groups.windows == (None, *[window] * 6)
    assert groups.layers[0] == (5, 11, 17, 23, 29) and [*map(len, groups.layers)] == [5] * 6 + [4]
    assert sorted(index for group in groups.layers for index in group) == [*range(34)]


@pytest.mark.parametrize(
    ("specs", "windows"),
    [
        ([spec(), spec()], (None,)),
        ([spec(32), spec(32)], (Window(32, 0, BLOCK, 64),)),
        ([spec(32), spec(4096)], (None, Window(32, 0, BLOCK, 64))),  # no request is longer than 4096
        ([spec(chunk=32), spec()], (None, Window(32, 0, BLOCK, 64))),
        ([spec(32, kept=4), spec(64)], (Window(32, 4, BLOCK, 64), Window(64, 0, BLOCK, 64))),
    ],
)
def test_windows_of_groups(specs: list[CacheSpec], windows: tuple[Window | None, ...]) -> None:
    groups = grouped(specs, BLOCK, 4096, 64)
    assert groups is not None and groups.windows == windows


@pytest.mark.parametrize(
    "specs",
    [
        [spec(), replace(spec(32), key_dim=16)],
        [spec(), spec(8)],
        [spec(), replace(spec(32), state=StateSpec(heads=1, key_heads=1, key_dim=8, value_dim=8, taps=2))],
        [spec(), *[spec(32)] * 9],
    ],
    ids=["blocks of different sizes", "a window below a block", "a state", "too many groups"],
)
def test_layers_that_cannot_be_grouped(specs: list[CacheSpec]) -> None:
    assert grouped(specs, BLOCK, 4096, 64) is None
