"""A new strategy on a running request: the tokens so far are kept, and the new strategy writes the others."""

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
from tests.outputs import Outputs
from tests.runner.small import drain as drain_model
from tests.runner.small import engine_on

PROMPT = [9, 8, 7, 6]


def started(params: SamplingParams, depth: int, steps: int) -> tuple[Engine, int, Outputs]:
    engine, result = ledger_engine(depth=depth, blocks=200), Outputs()
    id = engine.submit(PROMPT, params, result)
    run_steps(engine, steps)
    return engine, id, result


def run_steps(engine: Engine, count: int) -> None:
    for _ in range(count):
        engine.step()
        engine.scheduler.check()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("steps", [0, 1, 5, 13])
def test_a_search_continues_the_tokens_so_far(depth: int, steps: int) -> None:
    engine, id, result = started(SamplingParams(max_tokens=30, seed=1), depth, steps)
    engine.update(id, beams=4)
    run_steps(engine, 1)
    drain(engine)
    count = steps  # at depth 1 the last one was in flight, and is kept
    first, rest = result.first.tokens[:count], result.first.tokens[count:]
    assert first == alone(PROMPT, count, 1)
    assert rest == searched([*PROMPT, *first], SamplingParams(beams=4, max_tokens=30 - count, seed=1))[0]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("steps", [1, 2, 9])
def test_the_best_hypothesis_continues_alone(depth: int, steps: int) -> None:
    engine, id, result = started(SamplingParams(beams=4, max_tokens=30, seed=1), depth, steps)
    engine.update(id, beams=1)
    run_steps(engine, 1)
    assert set(engine.scheduler.requests) == {id}
    best = engine.scheduler.requests[id].tokens[len(PROMPT) :]
    assert result.first.tokens[: len(best)] == best and not engine.outputs.beams()
    drain(engine)
    assert result.first.tokens[:-1] == [*best, *alone([*PROMPT, *best], 30 - len(best), 1)][:-1]
    assert len(result.first.tokens) == 30 and result.first.finish is Finish.LENGTH


@pytest.mark.parametrize("depth", [0, 1])
def test_switching_back_and_forth(depth: int) -> None:
    """Greedy, top-p, beams, wider beams, greedy: with other requests, and with preemptions."""
    engine, id, result = started(SamplingParams(temperature=0.0, max_tokens=60, seed=3), depth, 5)
    ended: list[Event] = []
    engine.bus.subscribe(lambda event: ended.append(event) if isinstance(event, Finished) else None)
    other = Outputs()
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
        run_steps(engine, 3)
        engine.preempt(id)
        run_steps(engine, 3)
    drain(engine)
    assert len(result.first.tokens) == 60 and result.first.text == "".join(
        f"{token} " for token in result.first.tokens
    )
    assert other.first.tokens == alone([1, 2], 80, 7)
    assert sorted(event.request for event in ended) == [id, id + 1]


def test_max_tokens_below_the_current_length_ends_a_search() -> None:
    engine, id, result = started(SamplingParams(beams=3, max_tokens=30), 0, 9)
    engine.update(id, max_tokens=5)
    assert result.over and result.first.finish is Finish.LENGTH
    assert not engine.scheduler.requests


def test_more_beams_than_rows_are_refused() -> None:
    engine, id, _ = started(SamplingParams(max_tokens=30), 0, 2)
    with pytest.raises(BadParams, match="9 beams need as many rows; this engine runs 8"):
        engine.update(id, beams=9)
    with pytest.raises(BadParams, match="beams"):
        engine.submit(PROMPT, SamplingParams(beams=9), Outputs())


@pytest.mark.parametrize("depth", [0, 1])
def test_an_earlier_change_is_kept_while_a_search_waits(depth: int) -> None:
    """At depth 1 all hypotheses have a token in flight, so no change can apply before the next step."""
    engine, id, result = started(SamplingParams(beams=3, max_tokens=30), depth, 3)
    engine.update(id, beams=1)
    engine.update(id, temperature=0.5)
    engine.update(id, max_tokens=9)
    drain(engine)
    assert len(result.first.tokens) == 9
    engine, id, result = started(SamplingParams(beams=3, max_tokens=30), depth, 3)
    engine.update(id, beams=1)
    engine.update(id, temperature=0.5)
    run_steps(engine, 2)
    params = engine.scheduler.requests[id].params
    assert (params.beams, params.temperature) == (1, 0.5) and not engine.outputs.beams()


def test_a_single_hypothesis_cannot_be_changed() -> None:
    engine, id, result = started(SamplingParams(beams=3, max_tokens=30), 0, 3)
    inner = next(row for row in engine.outputs.rows(id) if row.id != id)
    with pytest.raises(BadInput, match=f"request {inner.id} is one of several that answer request {id}"):
        engine.update(inner.id, temperature=0.5)
    with pytest.raises(BadInput, match=r"choose another strategy \(beams 1\) to fork it"):
        engine.fork(inner.id, Outputs())
    assert inner.params.temperature == 1.0
    drain(engine)
    assert result.over and len(result.first.tokens) == 30


def test_a_search_cannot_be_forked() -> None:
    engine, id, _ = started(SamplingParams(beams=3, max_tokens=30), 0, 2)
    with pytest.raises(BadInput, match="choose another strategy"):
        engine.fork(id, Outputs())


@pytest.mark.parametrize("steps", [0, 1, 3, 4, 5, 6])
@pytest.mark.parametrize("depth", [0, 1])
def test_aborting_ends_all_hypotheses_with_the_best_text(depth: int, steps: int) -> None:
    params = SamplingParams(beams=4, max_tokens=30, stop_ids=STOPS, length_penalty=0.0)
    engine, id, result = started(params, depth, steps)
    tail = result.first.tail
    shown = result.first.text + tail
    engine.abort(id)
    assert result.over and result.first.finish is Finish.ABORTED and result.first.text == shown
    run_steps(engine, 2)
    assert not engine.scheduler.requests and engine.scheduler.pool.in_use == 0


def test_a_failing_step_fails_the_search_once() -> None:
    engine, _, result = started(SamplingParams(beams=4, max_tokens=30), 0, 3)
    other = Outputs()
    engine.submit([5], SamplingParams(max_tokens=3, seed=0), other)
    engine.runner.fails = lambda step: step.number == 4
    drain(engine)
    assert result.first.finish is Finish.FAILED and "simulated failure" in result.first.error


def assert_grows(result: Outputs) -> None:
    """Check that settled text is kept, and that the last delta of a reply completes it."""
    text, tokens = "", []
    for delta in result.deltas:
        if delta.choice == 0:
            text, tokens = text + delta.text, [*tokens, *delta.tokens]
    assert (text, tokens) == (result.first.text, result.first.tokens)


@pytest.mark.parametrize("stop", [(), ("a",), ("th", "er")])
def test_settled_text_is_never_withdrawn(llama: Path, stop: Sequence[str]) -> None:
    engine, result = engine_on(llama), Outputs()
    params = SamplingParams(
        beams=4, n=2, max_tokens=24, ignore_eos=True, stop=tuple(stop), repetition_penalty=1.2
    )
    engine.submit([1, 50, 60], params, result)
    drain_model(engine)
    assert_grows(result)
    for choice, one in result.choices.items():
        text = engine.tokenizer.decode(one.tokens, after=[1, 50, 60])
        assert text.startswith(one.text) and (one.finish is Finish.STOP or text == one.text), choice
    assert any(delta.tail for delta in result.deltas)


def test_a_snapshot_shows_the_tree() -> None:
    engine, id, result = started(SamplingParams(beams=4, max_tokens=30), 0, 6)
    [view] = engine.snapshot().beams
    assert (view.request, view.width, len(view.live)) == (id, 4, 4)
    assert view.certain == len(result.first.tokens)
    scores = [each.score for each in view.live]
    assert scores == sorted(scores, reverse=True)
    whole = {each.id: tuple(engine.scheduler.requests[each.id].tokens) for each in view.live}
    for each in view.live:
        assert whole[each.id][len(PROMPT) + view.certain :] == each.tokens
    assert {each.parent for each in view.live}.isdisjoint(each.parent for each in view.dropped)
    rows = {each.id: each.group for each in engine.snapshot().requests}
    assert rows == dict.fromkeys(whole, id)
