"""The cache shrinks and grows while requests run, which moves some of their blocks."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.window import GONE, Window
from engine.scheduling.resize import make_room, shrink
from engine.serving import transfers
from engine.serving.engine import Engine
from tests.engine.cache.test_window import PROMPT, WINDOW, ask, long_workloads, windows
from tests.engine.ledger import EMPTY, LedgerRunner, alone, drain, ledger_engine
from tests.engine.scheduling.test_company import Job, any_workload, run_workload
from tests.engine.workloads import Workload
from tests.examples import examples

LEAST = 6  # blocks: the longest of the jobs needs this many
STEPS = st.dictionaries(st.integers(0, 28), st.integers(0, 40), max_size=5)  # step -> blocks above the least


def resize(engine: Engine, size: int) -> None:
    """Resize the cache as a change of the weights does. Lost cells are overwritten, so reading them fails."""
    runner, pool = engine.runner, engine.scheduler.pool
    assert isinstance(runner, LedgerRunner)
    engine._drain()
    if size < pool.size:
        make_room(engine.scheduler, size)
        transfers.finish(engine.scheduler, engine.runner)
        runner.collect(runner.launch(shrink(engine.scheduler, size)))
        runner.cells[size:] = EMPTY
    elif size > pool.size:
        pool.grow(size)
    engine.scheduler.check()


def resizes_at(steps: dict[int, int], least: int) -> Callable[[Engine, int], None]:
    def meddle(engine: Engine, step: int) -> None:
        if step in steps:
            assert isinstance(engine.runner, LedgerRunner)
            resize(engine, min(least + steps[step], len(engine.runner.cells)))

    return meddle


@examples(15)
@given(any_workload, STEPS)
def test_resizing_does_not_change_replies(work: Workload[Job], steps: dict[int, int]) -> None:
    run_workload(work, resizes_at(steps, LEAST))


@examples(13)
@given(st.data(), windows, STEPS)
def test_resizing_does_not_change_replies_with_a_window(
    data: st.DataObject, window: Window, steps: dict[int, int]
) -> None:
    """Requests have holes where blocks have left the window."""
    run_workload(data.draw(long_workloads(window)), resizes_at(steps, window.peak), window)


@pytest.mark.parametrize("depth", [0, 1])
def test_resizing_keeps_holes(depth: int) -> None:
    engine = ledger_engine(blocks=60, window=WINDOW, context=2000, depth=depth)
    replies = [ask(engine, [n, *PROMPT], 60, n) for n in range(4)]
    while min(len(reply.tokens) for reply in replies) < 20:
        engine.step()
    rows = [(each, list(each.blocks)) for each in engine.scheduler.running]
    resize(engine, 18)
    moved = [request for request, before in rows if request.blocks != before]
    assert moved and all(GONE in request.blocks for request in moved), "no request with a hole was moved"
    for request, before in rows:
        holes = [place for place, block in enumerate(before) if block == GONE]
        assert [place for place, block in enumerate(request.blocks) if block == GONE][: len(holes)] == holes
    drain(engine)
    for n, reply in enumerate(replies):
        assert reply.tokens == alone([n, *PROMPT], 60, n, window=WINDOW)
