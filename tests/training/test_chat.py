"""The learned tokens of a chat; the chat template and the training text have the same tokens."""

import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from training.chat import (
    CHAT_TEMPLATE,
    FIRST,
    LEARN,
    START,
    Chat,
    Exchange,
    Passage,
    encode,
    render,
    token_id,
)
from training.check import Terms
from training.train import IGNORE, unpack

CHAT = Chat(
    "x", (Exchange("Hi 12\n there", "Yes `x` 1.", Terms(())), Exchange("ok?", "fine", Terms(()))), "Be kind."
)


def test_the_template_renders_the_training_text() -> None:
    template = ImmutableSandboxedEnvironment().from_string(CHAT_TEMPLATE)
    messages = [{"role": role, "content": content} for role, content in CHAT.turns()]
    made = template.render(messages=messages, bos_token=START, add_generation_prompt=True)
    assert made == render(CHAT.turns(), ask=True)


def test_encoding_turn_by_turn_equals_encoding_the_whole_text(tokenizer: Tokenizer) -> None:
    whole = tokenizer.encode(render(CHAT.turns()), add_special_tokens=False).ids
    assert [i & (LEARN - 1) for i in encode(CHAT, tokenizer)] == whole


def test_only_replies_and_their_end_tokens_are_learned(tokenizer: Tokenizer) -> None:
    learned = [i & (LEARN - 1) for i in encode(CHAT, tokenizer) if i & LEARN]
    assert tokenizer.decode(learned, skip_special_tokens=False) == "Yes `x` 1.<|im_end|>fine<|im_end|>"


def test_all_of_a_passage_but_its_start_token_is_learned(tokenizer: Tokenizer) -> None:
    ids = encode(Passage("plain", "Once upon a time"), tokenizer)
    assert ids[0] == tokenizer.token_to_id(START)
    assert all(i & LEARN for i in ids[1:])
    assert (
        tokenizer.decode([i & (LEARN - 1) for i in ids[1:]], skip_special_tokens=False)
        == "Once upon a time<|end|>"
    )


def test_an_excerpt_has_neither_start_nor_end_and_does_not_see_the_text_before_it(
    tokenizer: Tokenizer,
) -> None:
    start = token_id(tokenizer, START)
    whole, part = Passage("plain", "Once upon a time"), Passage("plain", "Once upon a day", whole=False)
    texts = [encode(each, tokenizer) for each in (whole, part, part)]
    row = torch.tensor([[id for ids in texts for id in ids]])
    batch = unpack(row, start, dense=True)
    ids = texts[1]
    assert tokenizer.decode([i & (FIRST - 1) for i in ids], skip_special_tokens=False) == part.text
    assert [bool(i & LEARN) for i in ids] == [False] + [True] * (len(ids) - 1)
    firsts = [len(texts[0]), len(texts[0]) + len(texts[1])]
    assert batch.targets[0, [first - 1 for first in firsts]].tolist() == [IGNORE, IGNORE]
    assert isinstance(batch.mask, torch.Tensor)
    assert [int(batch.mask[0, 0, first].sum()) for first in firsts] == [1, 1]
    assert int(batch.tokens.max()) < tokenizer.get_vocab_size()


def test_digits_are_separate_tokens_and_every_text_round_trips(tokenizer: Tokenizer) -> None:
    text = "In 2048 été → 漢字 \x1b[0m 12+7"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("2048", add_special_tokens=False).tokens == ["2", "0", "4", "8"]
    assert tokenizer.encode("").ids == [tokenizer.token_to_id(START)]
