"""The tokenizer and the chat templates of a GGUF file, from its metadata.

Reference: llama.cpp, llama-vocab.cpp (the patterns, by `tokenizer.ggml.pre`) and convert_hf_to_gguf.py. Where
llama.cpp approximates the original tokenizer (Qwen's normalizer), the original is followed.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from engine.api.errors import BadCheckpoint, UnsupportedModel
from engine.gguf.header import GgufFile, read_header
from engine.text.files import TextFiles

_CONTROL, _USER_DEFINED = 3, 4  # types of tokens
_LONGEST_TOKEN = 1024  # characters; the merges of a token are found in quadratic time
_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}  # names here, and in the metadata
_SPACE = "▁"

_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = rf"{_WORDS}|\p{{N}}{{1,3}}{_REST}"
_QWEN2 = rf"{_WORDS}|\p{{N}}{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASHED = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _by_case(after: str, digits: str) -> str:
    start = r"[^\r\n\p{L}\p{N}]?"
    return rf"{start}{_UPPER}*{_LOWER}+{after}|{start}{_UPPER}+{_LOWER}*{after}|{digits}{_SLASHED}"


# How a text is split into words, by `tokenizer.ggml.pre`.
_SPLITS = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4"), _by_case(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}")),
    "tekken": _by_case("", r"\p{N}"),
}
_GPT2 = ("gpt-2", "olmo", "mpt")  # by the pattern of GPT-2
_DIGITS = ("smollm", "starcoder", "refact", "command-r")  # the same, and each digit is a word
_WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "tekken")  # a word that is a token is not merged
_COMPOSED = ("qwen2", "deepseek-r1-qwen", "command-r")  # normalized to NFC first
_START = ("llama3", "llama-v3", "llama-bpe", "tekken")  # a text starts with the start token by default


def gguf_text_files(path: Path) -> TextFiles:
    """Return what the text files of a checkpoint would hold."""
    file = read_header(path)
    refuse_tokenizer(file)
    tokens = [str(token) for token in file.items("tokenizer.ggml.tokens")]
    try:
        tokenizer = _tokenizer(file, tokens)
        tokenizer.add_special_tokens([*_added(file, tokens, _CONTROL, special=True)])
        tokenizer.add_tokens([*_added(file, tokens, _USER_DEFINED, special=False)])
    except BadCheckpoint:
        raise
    except Exception as error:  # the library raises bare Exception for any problem
        raise BadCheckpoint(f"cannot load the tokenizer of {path}: {error}") from error
    return TextFiles(
        tokenizer=tokenizer,
        settings=dict(_settings(file, tokens)),
        generation={"eos_token_id": file.stop_ids()},
        config={},
        templates=dict(_templates(file)),
    )


def refuse_tokenizer(file: GgufFile) -> None:
    """Raise if the tokenizer is of a kind that cannot be read, judged by its names only."""
    kind, pre = file.text("tokenizer.ggml.model"), file.text("tokenizer.ggml.pre")
    if kind in (None, "none", "no_vocab"):
        raise UnsupportedModel(f"{file.path} has no tokenizer")
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModel(
            f"{file.path}: tokenizer.ggml.model is {kind!r:.80}; of GGUF files, gpt2 and llama can be read"
        )
    known = (*_SPLITS, *_GPT2, *_DIGITS)
    if kind == "gpt2" and pre not in known:
        raise UnsupportedModel(
            f"{file.path}: tokenizer.ggml.pre is {pre!r:.80}, which says how a text is split into words; "
            f"{', '.join(known)} can be read"
        )


def _tokenizer(file: GgufFile, tokens: list[str]) -> Tokenizer:
    byte_level = file.text("tokenizer.ggml.model") == "gpt2"
    return _byte_level(file, tokens) if byte_level else _sentencepiece(file, tokens)


def _byte_level(file: GgufFile, tokens: list[str]) -> Tokenizer:
    pre = file.text("tokenizer.ggml.pre")
    steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre not in _SPLITS)]
    if pre in _SPLITS:
        steps.insert(0, pre_tokenizers.Split(Regex(_SPLITS[pre]), behavior="isolated"))
    elif pre in _DIGITS:
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    pairs = [str(merge).partition(" ") for merge in file.items("tokenizer.ggml.merges")]
    merges = [(left, right) for left, _, right in pairs]
    model = models.BPE(vocab=_ids(tokens), merges=merges, ignore_merges=pre in _WHOLE_WORDS)
    tokenizer = Tokenizer(model)
    if pre in _COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(file: GgufFile, tokens: list[str]) -> Tokenizer:
    # Gemma's runs of spaces are stored as such.
    tokens = [_SPACE * len(token) if token and not token.strip(" ") else token for token in tokens]
    unknown = file.whole("tokenizer.ggml.unknown_token_id")
    model = models.BPE(
        vocab=_ids(tokens),
        merges=_merges(file, tokens),
        unk_token=tokens[unknown] if unknown is not None and 0 <= unknown < len(tokens) else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(" ", _SPACE)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if file.value("tokenizer.ggml.add_space_prefix") is False:
        tokenizer.normalizer = spaces
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges(file: GgufFile, tokens: list[str]) -> list[tuple[str, str]]:
    """Return every way in which two tokens make a third, the best first.

    That is the one with the higher score; of Gemma, whose scores say nothing, the one that is listed first.
    """
    listed = (file.text("general.architecture") or "").startswith("gemma")
    scores = [] if listed else file.items("tokenizer.ggml.scores")
    if not listed and (len(scores) != len(tokens) or not all(isinstance(each, float) for each in scores)):
        raise BadCheckpoint(f"{file.path}: tokenizer.ggml.scores must hold a number for each token")
    if (longest := max(map(len, tokens), default=0)) > _LONGEST_TOKEN:
        raise BadCheckpoint(f"{file.path}: a token has {longest:,} characters, more than {_LONGEST_TOKEN:,}")
    ids = _ids(tokens)
    found: list[tuple[float, int, int, str, str]] = []
    for token, number in ids.items():
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in ids and right in ids:
                rank = float(number) if listed else -scores[number]
                found.append((rank, ids[left], ids[right], left, right))
    found.sort(key=lambda each: each[:3])
    return [(left, right) for *_, left, right in found]


def _ids(tokens: list[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _added(file: GgufFile, tokens: list[str], kind: int, *, special: bool) -> Iterator[AddedToken]:
    """Yield the tokens that are found in a text before it is split into words."""
    kinds = file.items("tokenizer.ggml.token_type")
    for token, found in zip(tokens, kinds, strict=False):
        if found == kind and token:
            yield AddedToken(token, special=special, normalized=False)


def _settings(file: GgufFile, tokens: list[str]) -> Iterator[tuple[str, Any]]:
    for name, key in _SPECIAL.items():
        id = file.whole(f"tokenizer.ggml.{key}_token_id")
        if id is not None and 0 <= id < len(tokens):
            yield f"{name}_token", tokens[id]
    usual = file.text("tokenizer.ggml.model") == "llama" or file.text("tokenizer.ggml.pre") in _START
    given = file.value("tokenizer.ggml.add_bos_token")
    yield "add_bos_token", given if isinstance(given, bool) else usual


def _templates(file: GgufFile) -> Iterator[tuple[str, str]]:
    key = "tokenizer.chat_template"
    metadata: Mapping[str, Any] = file.metadata
    for name, value in metadata.items():
        if isinstance(value, str) and (name == key or name.startswith(f"{key}.")):
            yield name.removeprefix(key).removeprefix(".") or "default", value
