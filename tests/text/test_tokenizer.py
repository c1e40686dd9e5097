"""Reading a checkpoint's tokenizer files, and the errors if they are missing or wrong."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.api.errors import BadCheckpoint, BadInput, UnsupportedModel
from engine.text import Tokenizer

Write = Callable[..., Path]


def test_imports_nothing_heavy() -> None:
    code = "import engine.text, sys; print(sorted({'torch', 'transformers', 'jinja2'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_text_round_trips(small: dict[str, Tokenizer]) -> None:
    tokenizer = small["byte_level"]
    text = "Hello <think>wörld</think> 日本語 \x00 end"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert b"".join(map(tokenizer.piece, tokenizer.encode(text))) == text.encode()
    assert tokenizer.encode("") == []


def test_a_long_text_is_encoded_without_blocking_other_threads(small: dict[str, Tokenizer]) -> None:
    tokenizer = small["byte_level"]
    word, long = "Hello wörld ", "Hello wörld " * 20_000
    with ThreadPoolExecutor(1) as other:
        for read in (tokenizer.encode, tokenizer.encode_placed):
            turns, reading = 0, other.submit(read, long)
            while not reading.done():
                turns += 1
                time.sleep(0)
            assert turns > 100, "encoding held the interpreter all the time"
    assert tokenizer.encode(long) == tokenizer.encode(word) * 20_000
    far = len(long) - len(word)
    moved = [(token, start + far, end + far) for token, start, end in tokenizer.encode_placed(word)]
    assert tokenizer.encode_placed(long)[-len(moved) :] == moved


def test_special_tokens_are_recognized_and_hidden(small: dict[str, Tokenizer]) -> None:
    tokenizer = small["byte_level"]
    tokens = tokenizer.encode("a<|turn|>b")
    assert tokenizer.id_of("<|turn|>") in tokens
    assert tokenizer.special_ids == {0, 1, 2, 3}
    assert tokenizer.decode(tokens) == "ab"
    assert tokenizer.decode(tokens, skip_special=False) == "a<|turn|>b"


def test_pieces_of_other_tokenizers(small: dict[str, Tokenizer]) -> None:
    sentencepiece = small["sentencepiece"]
    assert sentencepiece.piece(sentencepiece.id_of("<0xE2>") or 0) == b"\xe2"
    assert sentencepiece.piece(sentencepiece.id_of("▁") or 0) == b" "
    assert small["wordpiece"].piece(small["wordpiece"].id_of("fox") or 0) == b"fox"
    assert sentencepiece.piece(sentencepiece.vocab_size) == b""


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece"])
def test_all_pieces_at_once_are_those_of_each_token(small: dict[str, Tokenizer], name: str) -> None:
    tokenizer = small[name]
    more = range(tokenizer.vocab_size + 2)
    assert tokenizer.pieces(len(more)) == [*map(tokenizer.piece, more)]


def test_start_tokens_of_a_raw_prompt(checkpoint: Write) -> None:
    """The post-processor adds <s> before a text and </s> after it, which would end the reply at once."""
    tokenizer = Tokenizer.load(checkpoint())
    assert tokenizer.encode_raw("Hi") == [1, *tokenizer.encode("Hi")]
    assert tokenizer.encode_raw("") == [1]


def test_config_may_switch_the_start_token_off(checkpoint: Write) -> None:
    config = {"add_bos_token": False, "bos_token": "<s>"}
    tokenizer = Tokenizer.load(checkpoint(tokenizer_config=config))
    assert tokenizer.encode_raw("Hi") == tokenizer.encode("Hi")
    assert tokenizer.encode_raw("") == [1]


def test_empty_prompt_without_a_start_token(checkpoint: Write) -> None:
    tokenizer = Tokenizer.load(checkpoint(tokenizer_config={"add_bos_token": False}))
    assert tokenizer.bos_id is None
    assert tokenizer.encode_raw("") == []


def test_start_token_from_the_model_config(checkpoint: Write) -> None:
    folder = checkpoint(config={"bos_token_id": 3}, tokenizer_config={"add_bos_token": False})
    assert Tokenizer.load(folder).encode_raw("") == [3]


@pytest.mark.parametrize(
    ("files", "stops"),
    [
        ({}, set()),
        ({"generation_config": {"eos_token_id": [2, 3]}}, {2, 3}),
        ({"generation_config": {"eos_token_id": 2}, "config": {"eos_token_id": 3}}, {2, 3}),
        ({"tokenizer_config": {"eos_token": {"content": "</s>", "lstrip": False}}}, {2}),
        ({"special_tokens_map": {"eos_token": "</s>"}}, {2}),
        ({"special_tokens_map": {"eos_token": "<s>"}, "tokenizer_config": {"eos_token": "</s>"}}, {2}),
        ({"tokenizer_config": {"eos_token": None}}, set()),
    ],
)
def test_stop_ids(checkpoint: Write, files: dict[str, object], stops: set[int]) -> None:
    assert Tokenizer.load(checkpoint(**files)).stop_ids == stops


def test_turn_end_of_the_template_stops(checkpoint: Write) -> None:
    listed = {"404": {"content": "<|im_end|>", "special": True}, "405": {"content": "<|eot_id|>"}}
    size = Tokenizer.load(checkpoint()).vocab_size
    listed = {str(size + n): entry for n, entry in enumerate(listed.values())}
    config = {"added_tokens_decoder": listed, "chat_template": "{{ messages[0].content }}<|im_end|>"}
    tokenizer = Tokenizer.load(checkpoint(tokenizer_config=config))
    assert tokenizer.stop_ids == {size}  # but not the other, which this template does not write
    assert tokenizer.special_ids == {0, 1, 2, 3, size}
    assert tokenizer.encode("<|im_end|><|eot_id|>") == [size, size + 1]
    assert tokenizer.vocab_size == size + 2


def test_real_tokenizers(qwen3: Path, llama3: Path, stories: Path) -> None:
    qwen, llama, story = map(Tokenizer.load, (qwen3, llama3, stories))
    assert (qwen.vocab_size, llama.vocab_size, story.vocab_size) == (151669, 128256, 512)
    assert (qwen.bos_id, llama.bos_id, story.bos_id) == (None, 128000, 1)
    assert (qwen.stop_ids, llama.stop_ids, story.stop_ids) == ({151645}, {128009}, {2})
    assert qwen.encode_raw("") == []
    assert llama.encode_raw("hi") == [128000, 6151]


def test_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UnsupportedModel, match=r"no tokenizer\.json.*it holds model\.safetensors"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(UnsupportedModel, match=r"has tokenizer\.model but no tokenizer\.json; convert"):
        Tokenizer.load(tmp_path)
    with pytest.raises(UnsupportedModel, match="is not a folder"):
        Tokenizer.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{}", "cannot load the tokenizer "),
        ("tokenizer.json", '{"version": "1.0", "mod', "cannot load the tokenizer "),
        ("tokenizer_config.json", "{", "is not JSON"),
        ("tokenizer_config.json", "[]", "must hold a JSON object"),
        ("tokenizer_config.json", '{"chat_template": 3}', "chat_template must be text"),
        ("tokenizer_config.json", '{"chat_template": [{"name": "default"}]}', "has no name or no template"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"9999": {"content": "<x>"}}}', "the id 9999"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"9": "<x>"}}', "must map ids to objects"),
        ("tokenizer_config.json", '{"added_tokens_decoder": ["<x>"]}', "must map ids to objects"),
        ("generation_config.json", '{"eos_token_id": "</s>"}', "eos_token_id must be token ids"),
        ("config.json", '{"eos_token_id": [2, -1]}', "eos_token_id must be token ids"),
        ("chat_template.jinja", b"\xff", "is not UTF-8"),
    ],
)
def test_broken_files(checkpoint: Write, name: str, content: str | bytes, message: str) -> None:
    folder = checkpoint()
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(BadCheckpoint, match=message):
        Tokenizer.load(folder)


def test_bad_text(small: dict[str, Tokenizer]) -> None:
    tokenizer = small["byte_level"]
    with pytest.raises(
        BadInput, match=r"must be valid Unicode, got a lone surrogate \(U\+D83D\) at character 1"
    ):
        tokenizer.encode("a\ud83d")
    with pytest.raises(BadInput, match="must be text, not bytes"):
        tokenizer.encode(b"a")  # type: ignore[arg-type]
    for token in (-1, 2**32):
        with pytest.raises(BadInput, match="out of range"):
            tokenizer.piece(token)
        with pytest.raises(BadInput, match="out of range"):
            tokenizer.decode([token])


def test_huge_text(small: dict[str, Tokenizer]) -> None:
    for tokenizer in (small["byte_level"], small["sentencepiece"]):
        text = "x" * 300_000
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_truncation_and_padding_of_the_file_are_ignored(checkpoint: Write) -> None:
    folder = checkpoint()
    path = folder / "tokenizer.json"
    described = json.loads(path.read_text())
    described["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    path.write_text(json.dumps(described))
    assert len(Tokenizer.load(folder).encode("one two three four five six seven")) > 4


def test_templates_from_every_place(checkpoint: Write) -> None:
    folder = checkpoint(chat_template={"chat_template": "old"})
    assert Tokenizer.load(folder).templates == {"default": "old"}
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert Tokenizer.load(folder).templates == {"default": "d", "tool_use": "t"}
    (folder / "chat_template.jinja").write_text("new")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("r")
    assert Tokenizer.load(folder).templates == {"default": "new", "tool_use": "t", "rag": "r"}
