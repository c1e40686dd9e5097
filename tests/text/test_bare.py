"""The stand-in for the tokenizer of random weights."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.errors import BadInput
from engine.text.bare import BareTokenizer

TOKENIZER = BareTokenizer(1000)


@given(st.lists(st.integers(0, 999)))
def test_replies_are_read_again_as_their_tokens(tokens: list[int]) -> None:
    text = TOKENIZER.decode(tokens)
    assert text == "".join(f"{token} " for token in tokens)
    assert TOKENIZER.encode_raw(text) == tokens


@given(st.text(st.characters(exclude_categories=["Cs", "Nd"])))
def test_other_text_is_its_bytes(text: str) -> None:
    assert TOKENIZER.encode_raw(text) == list(text.encode())


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_places_cover_the_text(text: str) -> None:
    placed = TOKENIZER.encode_placed(text)
    assert [token for token, _, _ in placed] == TOKENIZER.encode(text)
    assert "".join(text[begin:end] for begin, end in dict.fromkeys((b, e) for _, b, e in placed)) == text
    assert all(0 <= token < TOKENIZER.vocab_size for token, _, _ in placed)


def test_numbers_that_are_no_tokens_are_bytes() -> None:
    for text in ("1000 ", "12", "99999999999999999999 ", "1٣ "):
        assert TOKENIZER.encode_raw(text) == list(text.encode())
    assert BareTokenizer(50).encode_raw("ab 7 ") == [ord("a") % 50, ord("b") % 50, ord(" ") % 50, 7]


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(BadInput, match="a lone surrogate"):
        TOKENIZER.encode_raw("th\ud800e")
