"""Another strategy on a running request: what is written stays, the rest is what the new one would write."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.api.errors import BadInput, BadParams
from engine.api.events import Event, Finished
from engine.api.params import SamplingParams
from engine.api.request import Finish
from engine.serving.engine import Engine
from tests.engine.ledger import alone, drain, ledger_engine
from tests.groups.test_company import STOPS, searched
from tests.heard import Told
from tests.runner.small import drain as drain_model
from tests.runner.small import engine_on

PROMPT = [9, 8, 7, 6]


def begun(params: SamplingParams, depth: int, steps: int) -> tuple[Engine, int, Told]:
    engine, told = ledger_engine(depth=depth, blocks=200), Told()
    id = engine.submit(PROMPT, params, told)
    turns(engine, steps)
    return engine, id, told


def turns(engine: Engine, count: int) -> None:
    for _ in range(count):
        engine.step()
        engine.scheduler.check()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("steps", [0, 1, 5, 13])
def test_a_search_takes_over_what_is_written(depth: int, steps: int) -> None:
    engine, id, told = begun(SamplingParams(max_tokens=30, seed=1), depth, steps)
    engine.update(id, beams=4)
    turns(engine, 1)
    drain(engine)
    said = steps  # at depth 1 the last one was under way, and is kept
    first, rest = told.first.tokens[:said], told.first.tokens[said:]
    assert first == alone(PROMPT, said, 1)
    assert rest == searched([*PROMPT, *first], SamplingParams(beams=4, max_tokens=30 - said, seed=1))[0]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("steps", [1, 2, 9])
def test_the_best_hypothesis_goes_on_alone(depth: int, steps: int) -> None:
    engine, id, told = begun(SamplingParams(beams=4, max_tokens=30, seed=1), depth, steps)
    engine.update(id, beams=1)
    turns(engine, 1)
    assert set(engine.scheduler.requests) == {id}
    best = engine.scheduler.requests[id].tokens[len(PROMPT) :]
    assert told.first.tokens[: len(best)] == best and not engine.beams()
    drain(engine)
    assert told.first.tokens[:-1] == [*best, *alone([*PROMPT, *best], 30 - len(best), 1)][:-1]
    assert len(told.first.tokens) == 30 and told.first.finish is Finish.LENGTH


@pytest.mark.parametrize("depth", [0, 1])
def test_to_and_fro(depth: int) -> None:
    """Greedy, top-p, beams, wider beams, greedy: with others there, and with somebody who gives way."""
    engine, id, told = begun(SamplingParams(temperature=0.0, max_tokens=60, seed=3), depth, 5)
    ended: list[Event] = []
    engine.bus.subscribe(lambda event: ended.append(event) if isinstance(event, Finished) else None)
    other = Told()
    engine.submit([1, 2], SamplingParams(max_tokens=80, seed=7), other)
    for changes in (
        {"temperature": 0.8, "top_p": 0.9},
        {"beams": 3},
        {"beams": 6, "length_penalty": 0.5},
        {"beams": 2},
        {"beams": 1},
        {"beams": 5, "early_stopping": True},
        {"beams": 1, "temperature": 0.0},
    ):
        engine.update(id, **changes)
        turns(engine, 3)
        engine.preempt(id)
        turns(engine, 3)
    drain(engine)
    assert len(told.first.tokens) == 60 and told.first.text == "".join(
        f"{token} " for token in told.first.tokens
    )
    assert other.first.tokens == alone([1, 2], 80, 7)
    assert sorted(event.request for event in ended) == [id, id + 1]


def test_a_shorter_end_ends_a_search_at_once() -> None:
    engine, id, told = begun(SamplingParams(beams=3, max_tokens=30), 0, 9)
    engine.update(id, max_tokens=5)
    assert told.over and told.first.finish is Finish.LENGTH
    assert not engine.scheduler.requests


def test_more_beams_than_rows_are_refused_with_the_numbers() -> None:
    engine, id, _ = begun(SamplingParams(max_tokens=30), 0, 2)
    with pytest.raises(BadParams, match="9 beams need as many rows; this engine runs 8"):
        engine.update(id, beams=9)
    with pytest.raises(BadParams, match="beams"):
        engine.submit(PROMPT, SamplingParams(beams=9), Told())


@pytest.mark.parametrize("depth", [0, 1])
def test_what_was_changed_first_is_not_lost_where_a_search_has_to_wait(depth: int) -> None:
    """At depth 1 all hypotheses have a token on its way, so neither change can begin before the next step."""
    engine, id, told = begun(SamplingParams(beams=3, max_tokens=30), depth, 3)
    engine.update(id, beams=1)
    engine.update(id, temperature=0.5)
    engine.update(id, max_tokens=9)
    drain(engine)
    assert len(told.first.tokens) == 9
    engine, id, told = begun(SamplingParams(beams=3, max_tokens=30), depth, 3)
    engine.update(id, beams=1)
    engine.update(id, temperature=0.5)
    turns(engine, 2)
    params = engine.scheduler.requests[id].params
    assert (params.beams, params.temperature) == (1, 0.5) and not engine.beams()


def test_a_hypothesis_is_not_changed_on_its_own() -> None:
    engine, id, told = begun(SamplingParams(beams=3, max_tokens=30), 0, 3)
    inner = next(row for row in engine.outputs.rows(id) if row.id != id)
    with pytest.raises(BadInput, match=f"request {inner.id} is one of several that answer request {id}"):
        engine.update(inner.id, temperature=0.5)
    with pytest.raises(BadInput, match="set beams to 1 to fork it"):
        engine.fork(inner.id, Told())
    assert inner.params.temperature == 1.0
    drain(engine)
    assert told.over and len(told.first.tokens) == 30


def test_a_search_is_not_forked() -> None:
    engine, id, _ = begun(SamplingParams(beams=3, max_tokens=30), 0, 2)
    with pytest.raises(BadInput, match="set beams to 1"):
        engine.fork(id, Told())


@pytest.mark.parametrize("steps", [0, 1, 3, 4, 5, 6])
@pytest.mark.parametrize("depth", [0, 1])
def test_aborting_ends_all_hypotheses_with_the_best_text(depth: int, steps: int) -> None:
    params = SamplingParams(beams=4, max_tokens=30, stop_ids=STOPS, length_penalty=0.0)
    engine, id, told = begun(params, depth, steps)
    tail = told.first.tail
    shown = told.first.text + tail
    engine.abort(id)
    assert told.over and told.first.finish is Finish.ABORTED and told.first.text == shown
    turns(engine, 2)
    assert not engine.scheduler.requests and engine.scheduler.pool.in_use == 0


def test_a_failing_step_fails_the_search_once() -> None:
    engine, _, told = begun(SamplingParams(beams=4, max_tokens=30), 0, 3)
    other = Told()
    engine.submit([5], SamplingParams(max_tokens=3, seed=0), other)
    engine.runner.fails = lambda step: step.number == 4
    drain(engine)
    assert told.first.finish is Finish.FAILED and "told to fail" in told.first.error


def assert_grows(told: Told) -> None:
    """What was certain stays, and the last delta of a reply completes it."""
    text, tokens = "", []
    for delta in told.deltas:
        if delta.choice == 0:
            text, tokens = text + delta.text, [*tokens, *delta.tokens]
    assert (text, tokens) == (told.first.text, told.first.tokens)


@pytest.mark.parametrize("stop", [(), ("a",), ("th", "er")])
def test_what_is_certain_is_never_taken_back(llama: Path, stop: Sequence[str]) -> None:
    engine, told = engine_on(llama), Told()
    params = SamplingParams(
        beams=4, n=2, max_tokens=24, ignore_eos=True, stop=tuple(stop), repetition_penalty=1.2
    )
    engine.submit([1, 50, 60], params, told)
    drain_model(engine)
    assert_grows(told)
    for choice, one in told.choices.items():
        text = engine.tokenizer.decode(one.tokens, after=[1, 50, 60])
        assert text.startswith(one.text) and (one.finish is Finish.STOP or text == one.text), choice
    assert any(delta.tail for delta in told.deltas)


def test_the_tree_is_seen() -> None:
    engine, id, told = begun(SamplingParams(beams=4, max_tokens=30), 0, 6)
    [view] = engine.snapshot().beams
    assert (view.request, view.width, len(view.live)) == (id, 4, 4)
    assert view.certain == len(told.first.tokens)
    scores = [each.score for each in view.live]
    assert scores == sorted(scores, reverse=True)
    whole = {each.id: tuple(engine.scheduler.requests[each.id].tokens) for each in view.live}
    for each in view.live:
        assert whole[each.id][len(PROMPT) + view.certain :] == each.tokens
    assert {each.parent for each in view.live}.isdisjoint(each.parent for each in view.dropped)
    rows = {each.id: each.group for each in engine.snapshot().requests}
    assert rows == dict.fromkeys(whole, id)
