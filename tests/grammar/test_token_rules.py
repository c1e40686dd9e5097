"""Replies of allowed tokens, and without banned words."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.errors import BadParams
from engine.api.params import Grammar, SamplingParams
from engine.api.request import Finish
from engine.grammar.token_rules import RuledState, TokenRules
from engine.models.find import find_model
from engine.text.tokenizer import Tokenizer
from tests.grammar.test_replies import LETTERS, OTHER, PLAIN, PROMPT, WARM, reply_of
from tests.grammar.walks import allowed, request, tokenizer
from tests.runner.letters import EOS, VOCAB, byte_tokenizer
from tests.runner.small import alone, ask, drain, engine_on, run_to

A, B, C, SPACE = (byte_tokenizer().token_to_id(letter) for letter in ("a", "b", "c", "Ġ"))
FREE = replace(WARM, ignore_eos=True, max_tokens=30)
TOKENS = st.integers(0, 4)


def naive(written: Sequence[int], banned: Sequence[tuple[int, ...]], vocab: int) -> set[int]:
    """The tokens after which the text does not end in a banned sequence."""
    texts = {token: (*written, token) for token in range(vocab)}
    return {token for token, text in texts.items() if not any(text[-len(each) :] == each for each in banned)}


@given(
    prompt=st.lists(TOKENS, max_size=3),
    reply=st.lists(TOKENS, max_size=5),
    banned=st.lists(st.lists(TOKENS, min_size=2, max_size=4).map(tuple), max_size=5),
)
def test_words_are_banned_as_in_a_plain_search(
    prompt: list[int], reply: list[int], banned: list[tuple[int, ...]]
) -> None:
    rules = TokenRules(np.packbits(np.ones(5, bool), bitorder="little"), tuple(banned), "bad_words")
    state = RuledState(rules, None, len(prompt))
    state.read([*prompt, *reply])
    bits = np.unpackbits(state.allowed((), early=False), bitorder="little")
    assert set(np.flatnonzero(bits).tolist()) == naive(reply, banned, 5)
    assert bool(state.error) == (not bits.any())


def test_both_spellings_of_a_word_are_banned() -> None:
    """With a blank before it, too, if that is one token with its start."""
    every = set(range(VOCAB))
    plain, blank = (tokenizer().encode(text) for text in ("the", " the"))
    assert len(plain) == len(blank) == 1, "the tokenizer has these words as single tokens"
    assert allowed(request(None, bad_words=("the",))) == every - {*plain, *blank}
    assert allowed(request(None, bad_words=("ab",))) == every
    assert allowed(request(None, [A], bad_words=("ab",))) == every - {B}
    assert allowed(request(None, [A, C], bad_words=("ab",))) == every


def test_a_word_after_a_blank_may_have_another_number_of_tokens() -> None:
    """The built-in model has " block" as one token, and "block" as two."""
    words = Tokenizer.load(find_model("pocket").folder)
    plain, blank = (words.encode(text) for text in ("block", " block"))
    assert (len(plain), len(blank)) == (2, 1)
    rules = TokenRules.of(SamplingParams(bad_words=("block",)), words, 3072)
    bits = np.unpackbits(rules.bits, bitorder="little")
    assert np.flatnonzero(bits == 0).tolist() == blank and rules.banned == (tuple(plain),)


def test_only_allowed_tokens() -> None:
    assert allowed(request(None, allowed_token_ids=(A, B))) == {A, B}
    assert allowed(request(None, [A], allowed_token_ids=(A, B), bad_words=("ab",))) == {A}
    assert allowed(request(None, allowed_token_ids=(A, EOS), min_tokens=1)) == {A}
    assert allowed(request(None, [A], allowed_token_ids=(A, EOS), min_tokens=1)) == {A, EOS}
    assert allowed(request(LETTERS, allowed_token_ids=(B, C))) == {B}
    assert allowed(request(LETTERS, [A], allowed_token_ids=(B, C, EOS))) == {B, EOS}


def test_no_token_is_left() -> None:
    asked = request(None, allowed_token_ids=(EOS,), min_tokens=1)
    assert allowed(asked) == set()
    assert asked.guide.error == "no token is left that the request allows"
    assert asked.guide.fault == "allowed_token_ids"
    asked = request(Grammar("regex", "[ab]+"), allowed_token_ids=(C,))
    assert allowed(asked) == set()
    assert asked.guide.fault == "allowed_token_ids"


@pytest.mark.parametrize("depth", [0, 1])
def test_replies_of_a_model(llama: Path, depth: int) -> None:
    engine = engine_on(llama, depth=depth, blocks=256)
    few = ask(engine, PROMPT, replace(FREE, allowed_token_ids=(A, B, C)))[1]
    both = ask(engine, PROMPT, replace(FREE, allowed_token_ids=(A, B, C), bad_words=("ab", "cc", "ba")))[1]
    other = ask(engine, OTHER, PLAIN)[1]
    drain(engine)
    assert set(few.tokens) == {A, B, C} and len(few.tokens) == 30
    assert set(both.tokens) <= {A, B, C} and len(both.tokens) == 30
    assert not any(word in both.text for word in ("ab", "cc", "ba"))
    assert any(word in few.text for word in ("ab", "cc", "ba")), "the ban has no effect to see"
    assert other.tokens == alone(llama, OTHER, PLAIN).tokens


def test_a_masked_token_is_like_one_with_the_lowest_bias(llama: Path) -> None:
    """The oracle: a bias of -100 takes the token out of a reply, too."""
    engine = engine_on(llama)
    params = replace(FREE, temperature=0.0)
    usual = reply_of(engine, params)
    token = usual.tokens[0]
    biased = reply_of(engine, replace(params, logit_bias=((token, -100.0),)))
    masked = reply_of(engine, replace(params, allowed_token_ids=tuple({*range(VOCAB)} - {token})))
    assert masked.tokens == biased.tokens != usual.tokens


def test_an_update_applies_from_the_next_token(llama: Path) -> None:
    engine = engine_on(llama)
    id, output = ask(engine, PROMPT, replace(FREE, allowed_token_ids=(A, B)))
    run_to(engine, output, 5)
    before = len(output.tokens)
    engine.update(id, allowed_token_ids=(C,))
    run_to(engine, output, before + 6)
    engine.update(id, allowed_token_ids=None)
    drain(engine)
    assert set(output.tokens[:before]) <= {A, B}
    assert set(output.tokens[before + 1 : before + 6]) == {C}
    assert set(output.tokens[before + 8 :]) - {A, B, C}


def test_a_reply_without_an_allowed_end_goes_on(llama: Path) -> None:
    output = reply_of(engine_on(llama), replace(WARM, allowed_token_ids=(A,), max_tokens=10))
    assert (output.text, output.finish) == ("a" * 10, Finish.LENGTH)


def test_bad_ids_are_refused(llama: Path) -> None:
    engine = engine_on(llama)
    with pytest.raises(BadParams, match=r"^allowed_token_ids: token id 9999 is out of range"):
        ask(engine, PROMPT, SamplingParams(allowed_token_ids=(9999,)))
    with pytest.raises(BadParams, match=r"^allowed_token_ids: no token is left"):
        ask(engine, PROMPT, SamplingParams(allowed_token_ids=(EOS,), min_tokens=2))
    engine.grammars = None
    with pytest.raises(BadParams, match=r"^bad_words: is not available: .* has no tokenizer"):
        ask(engine, PROMPT, SamplingParams(bad_words=("x",)))
