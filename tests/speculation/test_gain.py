"""Drafting pays or stops, on steps with given costs instead of measured ones."""

import numpy as np
import pytest

from engine.api.params import SamplingParams
from engine.api.request import Request
from engine.scheduling.step import Drafts, Rows, Step, StepRow
from engine.speculation.gain import HOPELESS, INHERITED, REST, TRIES, AcceptanceRecord, Judge, Prices, Tally
from engine.speculation.speculator import Speculator
from tests.engine.ledger import drain, ledger_engine
from tests.outputs import Output


def cost_of(
    kind: str,
    right: int,
    price: float,
    tokens: int,
    rows: int = 1,
    replies: int = 1,
    reading: float = 0.0,
) -> tuple[float, Speculator]:
    """Return the time per token, in plain steps, of replies in which `right` drafts are always accepted.

    `reading`: the cost to a draft model of each token it has not seen yet, its prompt included.
    """
    speculator, time, all_made = Speculator(), 0.0, 0
    params = SamplingParams(speculate=kind)
    for id in range(replies):
        request = Request(id=id, tokens=[1, 2, 3] * 20, prompt_len=60, params=params, seed=0, max_len=9999)
        made, unread = 0, 60
        while made < tokens:
            speculator.begin_step(rows)
            drafts = speculator.propose(request, 99)
            count = drafts.length if drafts else 0
            step = Step(
                0,
                Rows.of([StepRow(each, each, 0, 1 + count, True, count) for each in range(rows)]),
                np.zeros(rows * (1 + count), np.int64),
                drafts=dict.fromkeys(range(id, id + rows), drafts) if drafts else {},
            )
            seconds = 0.010 * (1 + price * count * rows + (reading * unread if drafts else 0))
            speculator.observe_step(step, seconds)
            time += seconds / 0.010
            unread = 0 if drafts else unread + 1
            if drafts:
                speculator.observe_run(request, count, min(right, count), rows)
                made += 1 + min(right, count)
            else:
                speculator.observe_token(request)
                made += 1
            request.tokens += [1, 2, 3]
        all_made += made
        if id + 1 < replies:
            speculator.forget(request)
    return time / all_made, speculator


@pytest.mark.parametrize("kind", ["ngram", "exit"])
@pytest.mark.parametrize("price", [0.02, 0.3, 0.6])
@pytest.mark.parametrize(("tokens", "most"), [(96, 1.05), (256, 1.03), (2000, 1.01)])
def test_useless_drafts_cost_little(kind: str, price: float, tokens: int, most: float) -> None:
    share, speculator = cost_of(kind, 0, price, tokens)
    assert 1.0 <= share < most
    view = speculator.view(Request(0, [], 0, SamplingParams(), 0, 0))
    assert view is not None and not view.on and view.gain < 1


@pytest.mark.parametrize("kind", ["ngram", "exit"])
def test_short_replies_use_the_record_of_earlier_ones(kind: str) -> None:
    share, _ = cost_of(kind, 0, 0.5, 32, replies=40)
    assert share < 1.01, "each reply starts without the record of earlier ones"


def test_a_draft_model_that_must_catch_up_costs_little() -> None:
    share, _ = cost_of("draft", 0, 0.4, 96, replies=16, reading=0.03)
    assert share < 1.03, "reading the tokens of its pause costs too much"


def test_a_new_request_tries_drafts_again_soon() -> None:
    """The earlier text may have been of another kind."""
    _, speculator = cost_of("exit", 0, 0.5, 1000)  # a pause of 1024 has just begun
    request = Request(99, [1, 2, 3], 3, SamplingParams(speculate="exit"), 0, 9999)
    tokens = 0
    while speculator.propose(request, 99) is None:
        speculator.observe_token(request)
        tokens += 1
    assert 0 < tokens <= INHERITED


def test_the_total_gain_counts_all_replies() -> None:
    _, speculator = cost_of("exit", 16, 0.1, 500, replies=2)
    total = speculator.total()
    assert total.gain == pytest.approx(9 / (1 + 0.8), rel=0.1), (
        "eight drafts a step, at a tenth of a step each"
    )
    assert total.acceptance == 1.0
    assert cost_of("exit", 0, 0.5, 500)[1].total().gain < 1
    assert Speculator().total().gain == 0.0


def test_the_gain_of_a_reply_counts_all_of_it() -> None:
    """As the total does, so that both are the same after a single reply."""
    _, speculator = cost_of("exit", 16, 0.1, 300)
    request = Request(0, [], 0, SamplingParams(speculate="exit"), 0, 0)
    for _ in range(3):
        speculator.observe_run(request, 8, 0, 1)
    view, total = speculator.view(request), speculator.total()
    assert view is not None and view._replace(kind="", on=True) == total


def test_the_end_of_a_reply_says_what_its_drafts_brought() -> None:
    engine = ledger_engine(alphabet=3)
    plain, drafted, aborted = Output(), Output(), Output()
    engine.submit([1] * 12, SamplingParams(max_tokens=8, seed=0), plain)
    engine.submit([1] * 12, SamplingParams(max_tokens=60, seed=0, speculate="ngram"), drafted)
    drain(engine)
    id = engine.submit([1] * 12, SamplingParams(max_tokens=60, seed=0, speculate="exit"), aborted)
    while engine.scheduler.requests[id].generated < 30:
        engine.step()
    total = engine.scheduler.speculator.total()
    engine.abort(id)
    assert plain.last and drafted.last and aborted.last
    assert plain.last.speculation is None
    first, second = drafted.last.speculation, aborted.last.speculation
    assert first and second and (first.kind, second.kind) == ("ngram", "exit") and second.drafted
    assert first.drafted + second.drafted == total.drafted
    assert first.accepted + second.accepted == total.accepted
    assert first.verifications + second.verifications == total.verifications


@pytest.mark.parametrize("kind", ["ngram", "suffix", "exit"])
def test_right_drafts_pay(kind: str) -> None:
    share, _ = cost_of(kind, 16, 0.02, 400)
    assert share < 1 / 3


def test_an_expensive_draft_does_not_pay_with_many_rows() -> None:
    """A step of 16 rows gives 16 tokens: a draft that delays it by a fifth must save more than three."""
    alone, _ = cost_of("exit", 1, 0.2, 1000)
    assert alone < 1
    _, speculator = cost_of("exit", 1, 0.2, 1000, rows=16)
    assert speculator.tally.verifications < 100


def test_a_judge_pauses_longer_each_time_and_tries_again() -> None:
    judge, pauses = Judge(), []
    for _ in range(7):
        for _ in range(HOPELESS):
            assert judge.on
            judge.observe(drafted=4, accepted=0, price=0.1, rows=1)
        pauses.append(0)
        while not judge.on:
            judge.count_plain(1)
            pauses[-1] += 1
    assert pauses == [64, 128, 256, 512, 1024, 1024, 1024] and pauses[-1] == REST[1]
    for _ in range(TRIES):
        judge.observe(drafted=4, accepted=4, price=0.1, rows=1)
    assert judge.on and judge.gain == pytest.approx(5 / 1.4)


def test_steps_without_drafts_are_timed_again() -> None:
    prices = Prices()
    for _ in range(3):
        assert prices.wants_plain(1)
        prices.observe_plain(1, 0.010)
    assert not prices.wants_plain(1) and prices.wants_plain(2), "steps of two rows were not timed"
    for _ in range(TRIES):
        assert prices.of("exit", 1) == 0.0, "a price before enough measurements"
        prices.observe_drafts("exit", 1, 4, 0.014)
    assert prices.of("exit", 1) == pytest.approx(0.1)
    for _ in range(64 - TRIES):
        prices.observe_drafts("exit", 1, 4, 0.014)
    assert prices.wants_plain(1)


@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_the_price_follows_the_load_of_the_machine(speed: float) -> None:
    """Plain steps are timed rarely, so the newest few count: many would be from minutes before."""
    prices, steps = Prices(), 0

    def step(seconds: float) -> None:
        if prices.wants_plain(1):
            prices.observe_plain(1, seconds)
        else:
            prices.observe_drafts("exit", 1, 4, 1.5 * seconds)

    for _ in range(5000):
        step(0.010)
    assert prices.of("exit", 1) == pytest.approx(0.125)
    while steps < 40 or prices.of("exit", 1) != pytest.approx(0.125):  # the first ones are timed the old way
        step(0.010 / speed)
        steps += 1
    assert steps < 300


def test_a_baseline_from_before_a_pause_is_timed_again() -> None:
    now = 0.0
    prices = Prices(lambda: now)
    for _ in range(3):
        prices.observe_plain(1, 0.030)
    for _ in range(TRIES):
        prices.observe_drafts("exit", 1, 4, 0.015)
    now = 3600.0
    for left in (True, True, False):
        assert prices.wants_plain(1)
        prices.observe_plain(1, 0.010)
        assert prices.wants_plain(1) is left
    for _ in range(31):
        prices.observe_drafts("exit", 1, 4, 0.015)
    assert prices.of("exit", 1) == pytest.approx(0.125)


def test_an_outlier_counts_for_little() -> None:
    prices = Prices()
    for seconds in (0.010, 0.011, 0.200, 0.010, 0.009):
        prices.observe_plain(1, seconds)
    for seconds in (0.012, 0.400, 0.012, 0.012):
        prices.observe_drafts("ngram", 1, 2, seconds)
    assert prices.of("ngram", 1) == pytest.approx(0.1)


def test_a_record_weights_recent_drafts() -> None:
    record = AcceptanceRecord()
    for accepted in [4] * 50 + [0] * 50:
        record.observe(4, accepted)
    assert record.drafted == pytest.approx(4) and record.accepted < 0.05


def test_drafts_are_as_long_as_the_last_accepted_ones() -> None:
    _, speculator = cost_of("exit", 16, 0.0, 200)
    request = Request(0, [1, 2], 2, SamplingParams(speculate="exit"), 0, 99)
    assert speculator.propose(request, 99) == Drafts("exit", 8, (), -1)
    for _ in range(9):
        speculator.observe_run(request, 8, 3, 1)
    drafts = speculator.propose(request, 99)
    assert drafts is not None and drafts.length == 1


@pytest.mark.parametrize("reading", [0.0, 0.02, 0.1])
@pytest.mark.parametrize(("right", "tokens"), [(8, 34), (8, 300), (1, 34)])
def test_the_gain_includes_the_time_in_which_a_draft_model_reads_prompts(
    reading: float, right: int, tokens: int
) -> None:
    share, speculator = cost_of("draft", right, 0.05, tokens, replies=20, reading=reading)
    assert speculator.total().gain == pytest.approx(1 / share, rel=0.1)


def test_reading_a_prompt_delays_all_rows_and_counts_for_the_one_that_reads() -> None:
    speculator, params = Speculator(), SamplingParams(speculate="draft")
    old, new = (Request(id, [1] * 100, 100, params, 0, 999) for id in (0, 1))
    drafts = speculator.propose(old, 1), speculator.propose(new, 1)
    rows = Rows.of([StepRow(each, each, 100, 2, True, 1) for each in (0, 1)])
    speculator.observe_run(old, 1, 1, 2)
    speculator.prices.observe_plain(2, 0.010)
    both = {id: each for id, each in enumerate(drafts) if each is not None}
    speculator.observe_step(Step(0, rows, np.zeros(4, np.int64), drafts=both), 0.025)
    took = [request.drafts().gain for request in (old, new) if request.drafts is not None]
    assert took == [0, 0] and speculator.tally.took == 2 * 1.5
    speculator.observe_token(old)
    speculator.observe_token(new)
    views = [speculator.view(each) for each in (old, new)]
    assert [each and each.gain for each in views] == [0, 1 / 4]


def test_tokens_without_drafts_count_as_well() -> None:
    """Else a reply that drafted in a few of its steps seems as fast as these."""
    speculator, request = Speculator(), Request(0, [1, 2, 3], 3, SamplingParams(speculate="exit"), 0, 99)
    speculator.observe_token(request)  # the prompt's: it has not drafted yet
    assert speculator.propose(request, 8) is not None
    speculator.observe_run(request, 4, 4, 1)
    assert request.drafts is not None and request.drafts().tokens_a_step == 5
    for _ in range(10):
        speculator.observe_token(request)
    view = speculator.view(request)
    assert view is not None and view.tokens_a_step == pytest.approx(15 / 11)
    assert request.drafts() == view == speculator.total()._replace(kind=view.kind)
    tally = Tally(plain=10)
    assert tally.gain == 0, "not known yet"
    tally.observe(4, 4, 0.1, 1)
    assert tally.gain == pytest.approx(15 / 11.4)


def test_drafts_that_cost_nothing_have_a_gain() -> None:
    """A step with them may take no longer than one without."""
    prices, tally = Prices(), Tally()
    for _ in range(3):
        prices.observe_plain(1, 0.010)
    assert prices.known("ngram", 1) is None
    for _ in range(TRIES):
        prices.observe_drafts("ngram", 1, 9, 0.010)
    tally.observe(9, 9, prices.known("ngram", 1), 1)
    assert tally.gain == 10.0
