"""Every pair of parameters that change how a reply is generated works together, or is refused by name."""

from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import BadInput, BadParams
from engine.api.params import Grammar, SamplingParams
from engine.api.request import Finish
from engine.serving.engine import Engine
from tests.cases import one_of
from tests.outputs import Outputs
from tests.runner.small import drain, engine_on, turn, turn_until

PROMPT = [1, 65, 66, 65, 66]
OPTIONS: dict[str, dict[str, Any]] = {
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
# At the start: the field that the error names.
REFUSED = {
    ("beams", "best_of"): "best_of",
    ("beams", "logprobs"): "logprobs",
    ("beams", "speculate"): "speculate",
    ("beams", "grammar"): "grammar",
    ("speculate", "grammar"): "grammar",
}
# While running, from one to the other, in addition to what is refused at the start.
TOO_LATE = {"n": "n", "best_of": "best_of"}  # whatever came before
FROM_SAMPLES = {("n", "beams"): "beams"}  # rows of one prompt cannot become hypotheses


@pytest.fixture(scope="module")
def engine(llama: Path) -> Engine:
    return engine_on(llama, blocks=128, depth=1)


def together(*options: str) -> dict[str, Any]:
    fields = {name: value for option in options for name, value in OPTIONS[option].items()}
    return {"max_tokens": 12, "seed": 3, **fields}


@pytest.mark.parametrize("pair", one_of(4, combinations(OPTIONS, 2)), ids="+".join)
def test_two_options_at_once(engine: Engine, pair: tuple[str, str]) -> None:
    if field := REFUSED.get(pair):
        with pytest.raises(BadParams, match="cannot be combined with") as caught:
            SamplingParams(**together(*pair))
        assert caught.value.field == field
        return
    params, result = SamplingParams(**together(*pair)), Outputs()
    engine.submit(PROMPT, params, result)
    drain(engine)
    replies = [one for _, one in sorted(result.choices.items())]
    assert result.over and len(replies) == params.n
    for one in replies:
        assert one.finish in (Finish.STOP, Finish.LENGTH), one.error
        assert 0 < len(one.tokens) <= 12
        if params.logprobs:
            assert len(one.logprobs) == len(one.tokens)
        if params.grammar and one.finish is Finish.STOP and not (params.stop or params.stop_ids):
            assert set(one.text) <= set("ab") and len(one.text) >= 3


@pytest.mark.parametrize("pair", one_of(11, permutations(OPTIONS, 2)), ids="-".join)
def test_one_option_after_the_other(engine: Engine, pair: tuple[str, str]) -> None:
    """The second option is set on a reply that runs with the first."""
    before, after = pair
    result, params = Outputs(), SamplingParams(**together(before) | {"ignore_eos": True})
    id = engine.submit(PROMPT, params, result)
    for _ in range(3):
        turn(engine)
    if result.over:  # a stop came at once
        drain(engine)
        return
    named = REFUSED.get(pair) or REFUSED.get((after, before))
    field = named or TOO_LATE.get(after) or FROM_SAMPLES.get(pair)
    if pair == ("best_of", "beams"):
        field = "best_of"
    if field:
        with pytest.raises(BadParams) as caught:
            engine.update(id, **OPTIONS[after])
        assert caught.value.field == field, caught.value
        engine.abort(id)
    else:
        engine.update(id, **OPTIONS[after])
    drain(engine)
    assert result.over and all(one.finish for one in result.choices.values())
    if not field:
        assert not any(one.error for one in result.choices.values())


@pytest.mark.parametrize("turns", [0, 1, 4])
def test_a_search_can_switch_to_a_grammar_at_once(engine: Engine, turns: int) -> None:
    """The best hypothesis continues, and the tokens after it match the grammar."""
    result = Outputs()
    id = engine.submit(PROMPT, SamplingParams(beams=3, max_tokens=30, ignore_eos=True), result)
    for _ in range(turns):
        turn(engine)
    engine.update(id, beams=1, **OPTIONS["grammar"])
    turn_until(engine, lambda: not engine.outputs.rows(id)[0].awaits)
    searched = len(result.first.text)
    drain(engine)
    assert result.over and result.first.error == "" and result.first.finish is Finish.STOP
    held = result.first.text[searched:]
    assert 3 <= len(held) <= 9 and set(held) <= set("ab"), held


def test_a_search_cannot_be_forked(engine: Engine) -> None:
    result, other = Outputs(), Outputs()
    id = engine.submit(PROMPT, SamplingParams(beams=3, max_tokens=9), result)
    turn(engine)
    with pytest.raises(BadInput, match=r"choose another strategy \(beams 1\) to fork it"):
        engine.fork(id, other)
    engine.abort(id)
    drain(engine)
    assert not other.deltas
