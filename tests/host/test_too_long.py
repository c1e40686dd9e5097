"""Prompts that are refused before they are tokenized."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine.api.errors import RequestTooLong
from engine.host.prompts import ChatPrompt, CutPrompt
from engine.host.too_long import refuse_too_long

CONTEXT = 100
LONG = "word " * 200_000
SHOT: Any = SimpleNamespace(max_context=CONTEXT, context_bound="model")


def read(prompt: Any, per_token: int = 5) -> list[int]:
    """The lengths of the texts that are tokenized."""
    lengths: list[int] = []

    def encode(text: str) -> list[int]:
        lengths.append(len(text))
        return [0] * (len(text) // per_token)

    chat: Any = SimpleNamespace(tokenizer=SimpleNamespace(encode=encode))
    refuse_too_long(prompt, chat, lambda: SHOT)
    return lengths


@pytest.mark.parametrize(
    "prompt",
    [
        LONG,
        [{"role": "user", "content": LONG}],
        [{"role": "user", "content": "hi"}, {"role": "tool", "content": LONG}],
        ChatPrompt([{"role": "user", "content": [{"type": "text", "text": LONG}]}]),
        ChatPrompt([{"role": "user", "content": LONG[:1000]}] * 200),
    ],
)
def test_a_megabyte_for_a_small_context_is_refused_after_a_piece(prompt: Any) -> None:
    with pytest.raises(RequestTooLong, match="more than 200 tokens; this model takes 99"):
        read(prompt)


def test_a_text_of_few_tokens_is_read_to_its_end() -> None:
    assert sum(read(LONG, per_token=10_000)) == len(LONG)


@pytest.mark.parametrize(
    "prompt",
    [
        LONG[:60_000],
        [5] * 100_000,
        CutPrompt(LONG, 5),
        [{"role": "assistant", "content": LONG}],
        [{"role": "user", "content": " " * 1_000_000}],
        [{"role": "user", "content": None}, {"role": "user", "content": [5, {"text": 5}]}, "x"],
    ],
)
def test_other_prompts_are_left_to_the_tokenizer(prompt: Any) -> None:
    assert read(prompt) == []
