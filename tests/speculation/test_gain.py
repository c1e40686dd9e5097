"""Drafting pays, or it stops: on steps whose costs are told, not measured."""

import numpy as np
import pytest

from engine.api.params import SamplingParams
from engine.api.request import Request
from engine.scheduling.step import Drafts, Rows, Step, StepRow
from engine.speculation.gain import HOPELESS, INHERITED, REST, TRIES, AcceptanceRecord, Judge, Prices
from engine.speculation.speculator import Speculator


def spent(
    kind: str,
    right: int,
    price: float,
    tokens: int,
    rows: int = 1,
    replies: int = 1,
    reading: float = 0.0,
) -> tuple[float, Speculator]:
    """Plain steps' worth of time that replies take, one after the other, if so many drafts are always right.

    `reading`: what a small model pays for each token that it has not seen yet, its prompt among them.
    """
    speculator, time, all_made = Speculator(), 0.0, 0
    params = SamplingParams(speculate=kind)
    for id in range(replies):
        request = Request(id=id, tokens=[1, 2, 3] * 4, prompt_len=12, params=params, seed=0, max_len=9999)
        made, unread = 0, 60
        while made < tokens:
            speculator.begin_step(rows)
            drafts = speculator.propose(request, 99)
            count = drafts.length if drafts else 0
            step = Step(
                0,
                Rows.of([StepRow(each, each, 0, 1 + count, True, count) for each in range(rows)]),
                np.zeros(rows * (1 + count), np.int64),
                drafts=dict.fromkeys(range(rows), drafts) if drafts else {},
            )
            seconds = 0.010 * (1 + price * count * rows + (reading * unread if drafts else 0))
            speculator.saw_step(step, seconds)
            time += seconds / 0.010
            unread = 0 if drafts else unread + 1
            if drafts:
                speculator.saw_run(request, count, min(right, count), rows)
                made += 1 + min(right, count)
            else:
                speculator.saw_token(request)
                made += 1
            request.tokens += [1, 2, 3]
        all_made += made
        if id + 1 < replies:
            speculator.forget(request)
    return time / all_made, speculator


@pytest.mark.parametrize("kind", ["ngram", "exit"])
@pytest.mark.parametrize("price", [0.02, 0.3, 0.6])
@pytest.mark.parametrize(("tokens", "most"), [(96, 1.05), (256, 1.03), (2000, 1.01)])
def test_it_loses_little_where_it_cannot_win(kind: str, price: float, tokens: int, most: float) -> None:
    share, speculator = spent(kind, 0, price, tokens)
    assert 1.0 <= share < most
    view = speculator.view(Request(0, [], 0, SamplingParams(), 0, 0))
    assert view is not None and not view.on and view.gain < 1


@pytest.mark.parametrize("kind", ["ngram", "exit"])
def test_short_replies_learn_from_those_before_them(kind: str) -> None:
    share, _ = spent(kind, 0, 0.5, 32, replies=40)
    assert share < 1.01, "each new reply would lose 3 % if it had to find out for itself"


def test_a_small_model_that_has_to_catch_up_loses_little() -> None:
    share, _ = spent("draft", 0, 0.4, 96, replies=16, reading=0.03)
    assert share < 1.03, "which reads all that was said while it rested"


def test_who_begins_after_a_loser_tries_again_soon() -> None:
    """What was said before may have been of another kind."""
    _, speculator = spent("exit", 0, 0.5, 1000)  # a rest of 1024 has just begun
    request = Request(99, [1, 2, 3], 3, SamplingParams(speculate="exit"), 0, 9999)
    tokens = 0
    while speculator.propose(request, 99) is None:
        speculator.saw_token(request)
        tokens += 1
    assert 0 < tokens <= INHERITED


def test_the_total_knows_what_all_have_gained() -> None:
    _, speculator = spent("exit", 16, 0.1, 500, replies=2)
    total = speculator.total()
    assert total.gain == pytest.approx(9 / (1 + 0.8), rel=0.1), "eight at a time stand, at a tenth each"
    assert total.acceptance == 1.0
    assert spent("exit", 0, 0.5, 500)[1].total().gain < 1
    assert Speculator().total().gain == 0.0


@pytest.mark.parametrize("kind", ["ngram", "suffix", "exit"])
def test_it_wins_where_drafts_are_right(kind: str) -> None:
    share, _ = spent(kind, 16, 0.02, 400)
    assert share < 1 / 3


def test_at_many_rows_a_dear_draft_does_not_pay() -> None:
    """A step of sixteen rows brings sixteen tokens: what delays it by a fifth must bring more than three."""
    alone, _ = spent("exit", 1, 0.2, 1000)
    assert alone < 1
    _, speculator = spent("exit", 1, 0.2, 1000, rows=16)
    assert speculator.tally.verifications < 100


def test_a_judge_rests_longer_each_time_and_tries_again() -> None:
    judge, rests = Judge(), []
    for _ in range(7):
        for _ in range(HOPELESS):
            assert judge.on
            judge.saw(drafted=4, accepted=0, price=0.1, rows=1)
        rests.append(0)
        while not judge.on:
            judge.rested(1)
            rests[-1] += 1
    assert rests == [64, 128, 256, 512, 1024, 1024, 1024] and rests[-1] == REST[1]
    for _ in range(TRIES):
        judge.saw(drafted=4, accepted=4, price=0.1, rows=1)
    assert judge.on and judge.gain == pytest.approx(5 / 1.4)


def test_steps_without_drafts_are_looked_at_again() -> None:
    prices = Prices()
    for _ in range(3):
        assert prices.wants_plain(1)
        prices.saw_plain(1, 0.010)
    assert not prices.wants_plain(1) and prices.wants_plain(2), "of two rows nothing is known"
    for _ in range(TRIES):
        assert prices.of("exit", 1) == 0.0, "not known yet"
        prices.saw_drafts("exit", 1, 4, 0.014)
    assert prices.of("exit", 1) == pytest.approx(0.1)
    for _ in range(64 - TRIES):
        prices.saw_drafts("exit", 1, 4, 0.014)
    assert prices.wants_plain(1)


def test_a_busy_moment_counts_for_little() -> None:
    prices = Prices()
    for seconds in (0.010, 0.011, 0.200, 0.010, 0.009):
        prices.saw_plain(1, seconds)
    for seconds in (0.012, 0.400, 0.012, 0.012):
        prices.saw_drafts("ngram", 1, 2, seconds)
    assert prices.of("ngram", 1) == pytest.approx(0.1)


def test_a_record_forgets() -> None:
    record = AcceptanceRecord()
    for accepted in [4] * 50 + [0] * 50:
        record.saw(4, accepted)
    assert record.drafted == pytest.approx(4) and record.accepted < 0.05


def test_drafts_are_as_long_as_they_last_stood() -> None:
    _, speculator = spent("exit", 16, 0.0, 200)
    request = Request(0, [1, 2], 2, SamplingParams(speculate="exit"), 0, 99)
    assert speculator.propose(request, 99) == Drafts("exit", 8, (), -1)
    for _ in range(9):
        speculator.saw_run(request, 8, 3, 1)
    drafts = speculator.propose(request, 99)
    assert drafts is not None and drafts.length == 1
