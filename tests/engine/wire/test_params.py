import math

import pytest

from engine.api.errors import BadParams
from engine.api.params import FIELDS, MAX_GRAMMAR, Grammar, SamplingParams

WORD = Grammar("regex", "[a-z]+")
BAD = {
    "temperature": [-0.1, math.nan, math.inf, "hot", True, None],
    "top_k": [-1, 1.5, "3", True],
    "top_p": [0.0, -0.1, 1.1, math.nan],
    "min_p": [-0.1, 1.1],
    "repetition_penalty": [0.0, 1e-320, -1.0, math.inf],
    "presence_penalty": [-2.1, 2.1],
    "frequency_penalty": [-2.1, 2.1],
    "logit_bias": [{5: 101.0}, {-1: 1.0}, {"5": 1.0}, [(1, 2, 3)], "no", dict.fromkeys(range(2000), 0.0)],
    "seed": [1.5, "x", 2**64],
    "stop": [[""], [5], ["x"] * 17, 5],
    "stop_ids": [[-1], ["x"], "ab", [True]],
    "min_tokens": [-1, 0.5],
    "max_tokens": [-1, 2.0, True],
    "logprobs": [-1, 21, True],
    "logprob_token_ids": [5, "ab", [-1], [True], [3], [*range(1025)]],
    "prompt_logprobs": [-1, 21, True, 1.5],
    "pooling": ["max", None, 1, "last"],
    "ignore_eos": [1, "yes"],
    "allowed_token_ids": [[], [-1], ["x"], 5, [True], "ab"],
    "bad_words": ["no", [""], ["  "], [5], 5, ["x" * 257], ["x"] * 257],
    "include_stop_str_in_output": [1, "yes", None],
    "beams": [0, -1, 513, 2.0, True],
    "length_penalty": [11.0, -11.0, math.nan, "long", True],
    "early_stopping": ["always", 1, 0, None],
    "n": [0, 129, 1.5, True],
    "best_of": [0, 129, "all"],
    "speculate": ["magic", 1, None, True, ["ngram"]],
    "grammar": [{"kind": "json", "text": "{}", "any_whitespace": 1}, {"type": "object"}, "json", 1, True],
    "draft_tokens": [-1, 17, 1.5, None, True],
}


def test_every_field_has_bad_values_in_this_file() -> None:
    assert set(BAD) == set(FIELDS)


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in BAD.items() for value in values]
)
def test_a_bad_value_is_refused_and_its_field_named(field: str, value: object) -> None:
    with pytest.raises(BadParams) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field
    assert str(caught.value).startswith(field)


def test_values_are_normalized() -> None:
    params = SamplingParams(stop="end", stop_ids=[3, 4], logit_bias={9: 1, 2: -1.5})
    assert params.stop == ("end",)
    assert params.stop_ids == (3, 4)
    assert params.logit_bias == ((2, -1.5), (9, 1.0))


def test_a_change_is_checked_and_keeps_other_fields() -> None:
    params = SamplingParams(temperature=0.5, top_k=10)
    assert params.changed(top_k=5) == SamplingParams(temperature=0.5, top_k=5)
    with pytest.raises(BadParams, match="temprature: is not a sampling parameter"):
        params.changed(temprature=1.0)
    with pytest.raises(BadParams, match="min_tokens: 9 is more than max_tokens"):
        params.changed(min_tokens=9, max_tokens=3)


@pytest.mark.parametrize(
    ("field", "words", "together"),
    [
        ("n", "5 is more than beams", {"beams": 4, "n": 5}),
        ("best_of", "cannot be combined with beams", {"beams": 4, "best_of": 4}),
        ("best_of", "2 is less than n", {"n": 3, "best_of": 2}),
        ("logprobs", "cannot be combined with beams", {"beams": 2, "logprobs": 0}),
        ("prompt_logprobs", "cannot be combined with beams", {"beams": 2, "prompt_logprobs": 0}),
        ("max_tokens", "0 leaves nothing to search for", {"beams": 2, "max_tokens": 0}),
        ("speculate", "cannot be combined with beams", {"beams": 2, "speculate": "ngram"}),
        ("bad_words", "cannot be combined with beams", {"beams": 2, "bad_words": ["x"]}),
        ("bad_words", "cannot be combined with speculate", {"speculate": "ngram", "bad_words": ["x"]}),
        ("allowed_token_ids", "cannot be combined with beams", {"beams": 2, "allowed_token_ids": [1]}),
        ("grammar", "cannot be combined with beams", {"beams": 2, "grammar": WORD}),
        ("grammar", "cannot be combined with speculate", {"speculate": "ngram", "grammar": WORD}),
    ],
)
def test_conflicting_fields_are_refused_by_name(field: str, words: str, together: dict) -> None:
    with pytest.raises(BadParams, match=words) as caught:
        SamplingParams(**together)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("kind", "text"),
    [("xml", "<a/>"), (None, "a"), ("regex", None), ("json", {}), ("regex", "a" * (MAX_GRAMMAR + 1))],
)
def test_a_bad_grammar_is_refused(kind: object, text: object) -> None:
    with pytest.raises(BadParams, match=r"^grammar: "):
        Grammar(kind, text)
