"""Tokenizers of every kind: real ones from the shared folder, and small ones trained here."""

import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from engine.text import TemplateRenderer, Tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog, doesn't it? I'm not sure; they've seen 12 of them.",
    "Un café à la crème, s'il vous plaît. Größe, naïve, façade, señor, cœur.",
    "日本語のテキスト、漢字とかな。 Привет, мир! 😀 👩‍👩‍👧 🏳️‍🌈 \u0928\u092e\u0938\u094d\u0924\u0947",
    "def main():\n    print('hello world')\n\n\n\treturn 0  # done",
]
SPECIAL = ["<unk>", "<s>", "</s>", "<|turn|>"]


@pytest.fixture(scope="session")
def qwen3(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _unpack(shared / "tokenizers" / "qwen3.tar.xz", tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="session")
def llama3(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _unpack(shared / "tokenizers" / "llama3-instruct.tar.xz", tmp_path_factory.mktemp("llama3"))


@pytest.fixture(scope="session")
def stories(shared: Path) -> Path:
    return shared / "models" / "stories260K"


@pytest.fixture(scope="session")
def renderer() -> Iterator[TemplateRenderer]:
    with TemplateRenderer() as renderer:
        yield renderer


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a folder with a small byte-level tokenizer and the given files."""

    def write(**files: Any) -> Path:
        byte_level().save(str(tmp_path / "tokenizer.json"))
        for name, value in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(value))
        return tmp_path

    return write


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """The small tokenizers by the kind of their decoder."""
    found = {}
    for make in (byte_level, sentencepiece, metaspace, metaspace_never, wordpiece, word_ends, plain):
        folder = tmp_path_factory.mktemp(make.__name__)
        make().save(str(folder / "tokenizer.json"))
        found[make.__name__] = Tokenizer.load(folder)
    return found


def byte_level() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["<think>", "</think>", "<｜end of part｜>", "é!"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return tokenizer


def sentencepiece() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=SPECIAL + [f"<0x{byte:02X}>" for byte in range(256)],
        limit_alphabet=60,
        show_progress=False,
    )
    tokenizer.train_from_iterator([line.replace(" ", "▁") for line in CORPUS], trainer)
    described = json.loads(tokenizer.to_str())
    described["added_tokens"] = described["added_tokens"][: len(SPECIAL)]
    return tokenizers.Tokenizer.from_str(json.dumps(described))


def metaspace() -> tokenizers.Tokenizer:
    return _unigram("always")


def metaspace_never() -> tokenizers.Tokenizer:
    return _unigram("never")


def wordpiece() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def word_ends() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def plain() -> tokenizers.Tokenizer:
    """Whole words and no decoder."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _unigram(prepend: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend)
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _unpack(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return next(folder.glob("*/tokenizer.json")).parent
