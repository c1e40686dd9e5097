"""Every two parameters that change how a reply comes: they go together, or are refused by name."""

from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import BadInput, BadParams
from engine.api.params import Grammar, SamplingParams
from engine.api.request import Finish
from engine.serving.engine import Engine
from tests.heard import Told
from tests.runner.small import drain, engine_on, turn

PROMPT = [1, 65, 66, 65, 66]
WAYS: dict[str, dict[str, Any]] = {
    "beams": {"beams": 3},
    "n": {"n": 3},
    "best_of": {"best_of": 3},
    "logprobs": {"logprobs": 2},
    "speculate": {"speculate": "ngram"},
    "grammar": {"grammar": Grammar("regex", "[ab]{3,9}")},
    "greedy": {"temperature": 0.0},
    "filters": {"top_k": 9, "top_p": 0.9, "min_p": 0.01},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5},
    "bias": {"logit_bias": ((65, 5.0),)},
    "stop": {"stop": ("ab",)},
    "stop_ids": {"stop_ids": (66,)},
    "min_tokens": {"min_tokens": 4},
}
# At the start: the field that is named.
REFUSED = {
    ("beams", "best_of"): "best_of",
    ("beams", "logprobs"): "logprobs",
    ("beams", "speculate"): "speculate",
    ("beams", "grammar"): "grammar",
    ("speculate", "grammar"): "grammar",
}
# While it runs, from one to the other, beside what is refused at the start.
TOO_LATE = {"n": "n", "best_of": "best_of"}  # whatever came before
FROM_SAMPLES = {("n", "beams"): "beams"}  # rows of one prompt are no hypotheses of one text


@pytest.fixture(scope="module")
def engine(llama: Path) -> Engine:
    return engine_on(llama, blocks=128, depth=1)


def together(*ways: str) -> dict[str, Any]:
    return {"max_tokens": 12, "seed": 3, **{name: value for way in ways for name, value in WAYS[way].items()}}


@pytest.mark.parametrize("ways", combinations(WAYS, 2), ids="+".join)
def test_two_ways_at_once(engine: Engine, ways: tuple[str, str]) -> None:
    if field := REFUSED.get(ways):
        with pytest.raises(BadParams, match="cannot be combined with") as caught:
            SamplingParams(**together(*ways))
        assert caught.value.field == field
        return
    params, told = SamplingParams(**together(*ways)), Told()
    engine.submit(PROMPT, params, told)
    drain(engine)
    replies = [one for _, one in sorted(told.choices.items())]
    assert told.over and len(replies) == params.n
    for one in replies:
        assert one.finish in (Finish.STOP, Finish.LENGTH), one.error
        assert 0 < len(one.tokens) <= 12
        if params.logprobs:
            assert len(one.logprobs) == len(one.tokens)
        if params.grammar and one.finish is Finish.STOP and not (params.stop or params.stop_ids):
            assert set(one.text) <= set("ab") and len(one.text) >= 3


@pytest.mark.parametrize("ways", permutations(WAYS, 2), ids="-".join)
def test_one_after_the_other(engine: Engine, ways: tuple[str, str]) -> None:
    """The second is added to a reply that runs by the first."""
    before, after = ways
    told, params = Told(), SamplingParams(**together(before) | {"ignore_eos": True})
    id = engine.submit(PROMPT, params, told)
    for _ in range(3):
        turn(engine)
    if told.over:  # a stop came at once
        drain(engine)
        return
    named = REFUSED.get(ways) or REFUSED.get((after, before))
    field = named or TOO_LATE.get(after) or FROM_SAMPLES.get(ways)
    if ways == ("best_of", "beams"):
        field = "best_of"
    if field:
        with pytest.raises(BadParams) as caught:
            engine.update(id, **WAYS[after])
        assert caught.value.field == field, caught.value
        engine.abort(id)
    else:
        engine.update(id, **WAYS[after])
    drain(engine)
    assert told.over and all(one.finish for one in told.choices.values())
    if not field:
        assert not any(one.error for one in told.choices.values())


@pytest.mark.parametrize("turns", [0, 1, 4])
def test_from_a_search_a_reply_goes_over_to_a_grammar_at_once(engine: Engine, turns: int) -> None:
    """The best hypothesis goes on, and what comes behind it keeps to the grammar."""
    told = Told()
    id = engine.submit(PROMPT, SamplingParams(beams=3, max_tokens=30, ignore_eos=True), told)
    for _ in range(turns):
        turn(engine)
    engine.update(id, beams=1, **WAYS["grammar"])
    while engine.outputs.rows(id)[0].awaits:
        turn(engine)
    searched = len(told.first.text)
    drain(engine)
    assert told.over and told.first.error == "" and told.first.finish is Finish.STOP
    held = told.first.text[searched:]
    assert 3 <= len(held) <= 9 and set(held) <= set("ab"), held


def test_a_search_is_not_forked_and_samples_are_by_their_first(engine: Engine) -> None:
    told, other = Told(), Told()
    id = engine.submit(PROMPT, SamplingParams(beams=3, max_tokens=9), told)
    turn(engine)
    with pytest.raises(BadInput, match="set beams to 1 to fork it"):
        engine.fork(id, other)
    engine.abort(id)
    drain(engine)
    assert not other.deltas
