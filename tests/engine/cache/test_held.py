"""The last delta of a reply reports how many blocks the reply held. The pool's counts are the oracle."""

import pytest

from engine.api.events import Delta
from engine.api.params import SamplingParams
from engine.api.request import Finish
from engine.kv.window import Window
from engine.serving.engine import Engine
from tests.engine.ledger import drain, ledger_engine

PROMPT = [n % 10 for n in range(100)]


class RecordedEnds:
    """Records the last delta of each reply, and the blocks in use at that moment."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.ends: list[Delta] = []
        self.in_use: list[int] = []

    def __call__(self, delta: Delta) -> None:
        if delta.finish:
            self.ends.append(delta)
            self.in_use.append(self._engine.scheduler.pool.in_use)
        else:
            assert not delta.blocks

    @property
    def blocks(self) -> list[int]:
        return [delta.blocks for delta in self.ends]


@pytest.mark.parametrize(("depth", "window"), [(0, None), (1, None), (0, Window(32, 4, 16))])
def test_a_single_request_held_all_blocks_in_use(depth: int, window: Window | None) -> None:
    engine = ledger_engine(depth=depth, window=window)
    received = RecordedEnds(engine)
    engine.submit(PROMPT, SamplingParams(max_tokens=30, seed=1), received)
    drain(engine)
    assert received.blocks == received.in_use
    if window is None:
        assert received.blocks == [9]  # 129 tokens: the last one is never in the cache
    else:
        assert 0 < received.blocks[0] < 9


@pytest.mark.parametrize("best", [None, 5])
def test_samples_of_one_prompt_share_the_blocks_of_the_prompt(best: int | None) -> None:
    engine = ledger_engine()
    received = RecordedEnds(engine)
    engine.submit(PROMPT, SamplingParams(max_tokens=10, n=5, best_of=best, seed=0), received)
    drain(engine)
    assert received.blocks == [7] * 5
    assert received.in_use[0] < 5 * 7


def test_an_aborted_request_reports_its_blocks_and_a_waiting_one_none() -> None:
    engine = ledger_engine(slots=1)
    received = RecordedEnds(engine)
    ids = [engine.submit(PROMPT, SamplingParams(max_tokens=30, seed=1), received) for _ in range(2)]
    for _ in range(4):
        engine.step()
    for id in reversed(ids):
        engine.abort(id)
    drain(engine)
    assert [delta.finish for delta in received.ends] == [Finish.ABORTED] * 2
    assert received.blocks == [0, 7]


def test_a_reply_says_how_long_the_engine_took_from_its_first_token_to_its_last() -> None:
    engine = ledger_engine()
    received, times = RecordedEnds(engine), dict[int, list[float]]()

    def take(delta: Delta) -> None:
        times.setdefault(delta.request, []).extend([engine.clock.now] * len(delta.tokens))
        received(delta)

    *_, running = [engine.submit(PROMPT, SamplingParams(max_tokens=most), take) for most in (1, 5, 0, 90)]
    for _ in range(9):
        engine.clock.now += 2
        engine.step()
    engine.clock.now += 60
    engine.abort(running)
    engine.step()
    seconds = {each.request: each.decoding for each in received.ends}
    assert seconds == {id: max(seen, default=0) - min(seen, default=0) for id, seen in times.items()}
    assert sorted(seconds.values())[:2] == [0, 0] and len(set(seconds.values())) == 3


@pytest.mark.parametrize("several", [{"beams": 3}, {"best_of": 3}])
def test_replies_that_are_sent_at_the_end_say_how_long_their_tokens_took(several: dict[str, int]) -> None:
    engine = ledger_engine()
    received, steps = RecordedEnds(engine), 0
    engine.submit(PROMPT, SamplingParams(max_tokens=8, **several), received)
    while not received.ends:
        engine.clock.now += 2
        engine.step()
        steps += 1
        assert steps < 50
    assert received.ends[0].decoding == 2 * 7
