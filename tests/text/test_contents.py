"""Which characters each token of a prompt stands for: exact where known, empty where not."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.host.prompts import prompt_ids, prompt_layout, texts
from engine.text import ChatFormat, TemplateRenderer, Tokenizer

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|turn|>{% endfor %}[assistant]"
TRIMS = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}<|turn|>{% endfor %}"
BACKWARDS = "{% for m in messages | reverse %}{{ m.content }}<|turn|>{% endfor %}"
ONLY_LAST = "{{ messages[-1].content }}<|turn|>"
SHOUTS = "{% for m in messages %}{{ m.content | upper }}<|turn|>{% endfor %}"
COUNTS = "{% for m in messages %}{{ m.content | length }}{{ m.content }}<|turn|>{% endfor %}"
TALK = [
    {"role": "system", "content": "  Be brief.\n"},
    {"role": "user", "content": "What is 2 + 2? 日本 😀"},
    {"role": "assistant", "content": "Four. Four."},
    {"role": "user", "content": ""},
    {"role": "user", "content": "Four."},
]


@pytest.fixture
def chat(checkpoint: Callable[..., Path], renderer: TemplateRenderer) -> Callable[[str], ChatFormat]:
    def make(template: str) -> ChatFormat:
        return ChatFormat(Tokenizer.load(checkpoint(tokenizer_config={"chat_template": template})), renderer)

    return make


def shown(chat: ChatFormat, messages: list[dict[str, Any]]) -> list[str]:
    """Return each message with a dot for every character that no token stands for."""
    layout = chat.layout(messages)
    assert list(layout.ids) == chat.prompt(messages)
    assert len(layout.ids) == len(layout.places)
    texts = [["."] * len(message["content"]) for message in messages]
    for message, start, end in layout.places:
        if message >= 0:
            texts[message][start:end] = messages[message]["content"][start:end]
    return ["".join(text) for text in texts]


WHOLE = ["..Be brief..", "What is 2 + 2? 日本 😀", "Four. Four.", "", "Four."]


@pytest.mark.parametrize(
    ("template", "known"),
    [
        (PLAIN, WHOLE),
        (TRIMS, WHOLE),
        (BACKWARDS, WHOLE),
        (ONLY_LAST, ["." * 12, "." * 19, "." * 11, "", "Four."]),
        (SHOUTS, ["." * 12, "." * 19, "." * 11, "", "." * 5]),
        (COUNTS, ["." * 12, "." * 19, "." * 11, "", "." * 5]),
    ],
    ids=["plain", "trims", "backwards", "only the last", "changes letters", "looks at the text"],
)
def test_known_characters_by_template(
    chat: Callable[[str], ChatFormat], template: str, known: list[str]
) -> None:
    assert shown(chat(template), TALK) == known


def test_control_tokens_in_a_message_stay_text(chat: Callable[[str], ChatFormat]) -> None:
    text = "a <|turn|> b </s>"
    assert shown(chat(PLAIN), [{"role": "user", "content": text}]) == [text]


def test_internal_markers_in_a_message_belong_to_no_token(chat: Callable[[str], ChatFormat]) -> None:
    text = "a \ufdd1\ufdd4\ufdd2b\ufdd3"
    assert shown(chat(PLAIN), [{"role": "user", "content": text}]) == ["." * len(text)]


def test_a_token_stands_for_its_own_text(chat: Callable[[str], ChatFormat]) -> None:
    talk = chat(PLAIN)
    layout = talk.layout(TALK)
    for token, (message, start, end) in zip(layout.ids, layout.places, strict=True):
        text = TALK[message]["content"][start:end] if message >= 0 else ""
        piece = talk.tokenizer.piece(token).decode(errors="replace")
        if text and text.isascii():
            assert text == piece or text == piece.strip(), (text, piece)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), min_size=1, max_size=4))
def test_any_text_of_any_message(
    small: dict[str, Tokenizer], renderer: TemplateRenderer, texts: list[str]
) -> None:
    for tokenizer in small.values():
        tokenizer = copy.copy(tokenizer)  # other tests use it too
        tokenizer.templates = {"default": PLAIN}
        talk = ChatFormat(tokenizer, renderer)
        messages = [{"role": "user", "content": text} for text in texts]
        layout = talk.layout(messages)
        assert list(layout.ids) == talk.prompt(messages)
        for message, start, end in layout.places:
            assert message == -1 or 0 <= start <= end <= len(texts[message])


def test_plain_text_is_one_message(small: dict[str, Tokenizer], renderer: TemplateRenderer) -> None:
    for tokenizer in small.values():
        talk, text = ChatFormat(tokenizer, renderer), "The quick brown fox."
        layout = prompt_layout(text, talk)
        assert list(layout.ids) == prompt_ids(text, talk)[0]
        known = {at for message, *span in layout.places if message == 0 for at in range(*span)}
        assert [text[at] for at in range(len(text)) if at not in known and text[at] != " "] == []


def test_what_each_token_adds_to_a_reply(small: dict[str, Tokenizer], renderer: TemplateRenderer) -> None:
    for tokenizer in small.values():
        talk, text = ChatFormat(tokenizer, renderer), "Größe 日本 and the fox"
        tokens = tokenizer.encode(text)
        pieces = texts(tokens, (), talk)
        for count in range(1, len(pieces) + 1):
            before = tokenizer.detokenizer()
            assert "".join(pieces[:count]) == "".join(map(before.push, tokens[:count]))
