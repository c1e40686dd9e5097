"""Tokenizers and chat templates in the metadata of GGUF files."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.models.find import find_model
from engine.text.chat import ChatFormat
from engine.text.tokenizer import Tokenizer
from tests.models.gguf.ggufs import gguf

TEXTS = (
    "Hello, world 2024!\n\n  It's   here.",
    "naïve äöü 漢字 😀 tab\tend ",
    "<|im_start|>user\nhi<|im_end|>",
    "",
)


def write(path: Path, kind: str, tokens: list[str], **more: Any) -> Path:
    writer = gguf.GGUFWriter(str(path), more.pop("architecture", "llama"))
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    for name, value in more.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_the_built_in_tokenizer_is_the_same_from_gguf(tmp_path: Path) -> None:
    folder = find_model(None).folder
    whole, settings = (
        json.loads((folder / name).read_text()) for name in ("tokenizer.json", "tokenizer_config.json")
    )
    tokens = sorted(whole["model"]["vocab"], key=whole["model"]["vocab"].get)
    special = {each["content"] for each in whole["added_tokens"]}
    file = write(
        tmp_path / "pocket.gguf",
        "gpt2",
        tokens,
        tokenizer_pre="refact",
        token_merges=[" ".join(pair) for pair in whole["model"]["merges"]],
        token_types=[3 if token in special else 1 for token in tokens],
        bos_token_id=0,
        eos_token_id=2,
        eot_token_id=3,
        add_bos_token=True,
        chat_template=settings["chat_template"],
    )
    expected, found = Tokenizer.load(folder), Tokenizer.load(file)
    for text in TEXTS:
        assert found.encode_raw(text) == expected.encode_raw(text)
        assert found.decode(found.encode(text)) == text.replace("<|im_start|>", "").replace("<|im_end|>", "")
    assert (found.stop_ids, found.hidden_ids) == (expected.stop_ids, expected.hidden_ids)
    with ChatFormat(found) as ours, ChatFormat(expected) as theirs:
        messages = [{"role": "user", "content": "Hi <|im_end|> there"}]
        assert ours.prompt(messages) == theirs.prompt(messages)


WORDS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
PIECES = [*"▁abcdé", "ab", "▁a", "bc", "abc", "▁ab", "<turn>", "▁▁"]


def sentencepiece(path: Path, **more: Any) -> Tokenizer:
    kinds = [2, 3, 3, *[6] * 256, *[4 if each == "<turn>" else 1 for each in PIECES]]
    return Tokenizer.load(write(path, "llama", [*WORDS, *PIECES], token_types=kinds, unk_token_id=0, **more))


def names(tokenizer: Tokenizer, text: str) -> list[str]:
    return [(WORDS + PIECES)[token] for token in tokenizer.encode(text)]


def test_scores_decide_which_pieces_are_merged_first(tmp_path: Path) -> None:
    """`bc` comes before `ab` by its score, although its number is higher."""
    scores = {"ab": -3.0, "▁a": -9.0, "bc": -1.0, "abc": -2.0, "▁ab": -8.0, "▁▁": -4.0}
    listed = [0.0] * len(WORDS) + [scores.get(each, -50.0) for each in PIECES]
    tokenizer = sentencepiece(tmp_path / "it.gguf", token_scores=listed, bos_token_id=1)
    assert names(tokenizer, "abcd") == ["▁", "abc", "d"]
    assert names(tokenizer, "ab a") == ["▁ab", "▁a"]
    assert names(tokenizer, "a<turn>b") == ["▁a", "<turn>", "▁", "b"]
    assert names(tokenizer, "é漢") == ["▁", "é", "<0xE6>", "<0xBC>", "<0xA2>"]
    assert tokenizer.encode_raw("a")[0] == 1, "llama.cpp adds the start token unless the file says otherwise"
    for text in ("abcd é漢", "  two spaces", "x\ny"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_gemma_merges_in_the_order_of_its_pieces_and_adds_no_space(tmp_path: Path) -> None:
    listed = [0.0] * (len(WORDS) + len(PIECES))
    more = {"token_scores": listed, "add_space_prefix": False, "add_bos_token": False}
    tokenizer = sentencepiece(tmp_path / "it.gguf", architecture="gemma3", **more)
    assert names(tokenizer, "abcd") == ["abc", "d"]
    assert names(tokenizer, "a  bc") == ["a", "▁▁", "bc"]
    assert tokenizer.decode(tokenizer.encode(" a  bc")) == " a  bc"
    assert tokenizer.encode_raw("a") == tokenizer.encode("a")


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", ["It", "'s", " 12345", " I", "'", "LL", " x", " ", " y", "!", "\n"]),
        ("smollm", ["It", "'s", " ", *"12345", " I", "'", "LL", " x", " ", " y", "!", "\n"]),
        ("llama-bpe", ["It", "'s", " ", "123", "45", " I", "'LL", " x", " ", " y", "!\n"]),
        ("qwen2", ["It", "'s", " ", *"12345", " I", "'LL", " x", " ", " y", "!\n"]),
        ("gpt-4o", ["It's", " ", "123", "45", " I'LL", " x", " ", " y", "!\n"]),
        ("tekken", ["It", "'s", " ", *"12345", " I", "'LL", " x", " ", " y", "!\n"]),
    ],
)
def test_the_kind_of_bpe_decides_how_words_are_split(pre: str, words: list[str], tmp_path: Path) -> None:
    more = {"tokenizer_pre": pre, "token_merges": []}
    tokenizer = Tokenizer.load(write(tmp_path / "it.gguf", "gpt2", ["a"], **more))
    text = "It's 12345 I'LL x  y!\n"
    spans = [span for _, span in tokenizer.library.pre_tokenizer.pre_tokenize_str(text)]
    assert [text[start:end] for start, end in spans] == words
