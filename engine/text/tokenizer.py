"""Tokenization and detokenization with the checkpoint's tokenizer."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

import tokenizers

from engine.api.errors import BadCheckpoint, BadInput
from engine.gguf.header import is_gguf
from engine.main_memory import trim_heap
from engine.text.detokenize import ByteDetokenizer, Detokenizer, WindowDetokenizer
from engine.text.files import TextFiles
from engine.text.gguf import gguf_text_files
from engine.text.pieces import PieceTable, byte_rule, token_name
from engine.timeline import timed

# If a chat template writes one of these, it ends a turn. Others, such as <|end|>, end a turn for some models
# and only a part of a turn for others, so they must come from the checkpoint's generation config.
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eot|>", "<end_of_turn>", "<|end_of_turn|>", "<turn|>")
# Special tokens that a reply's parts are made of, by the word of a chat template that shows them.
REPLY_MARKS = {
    "[TOOL_CALLS]": ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    "<｜tool▁call▁begin｜>": (
        *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
        *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    ),
    "<arg_key>": ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "<start_function_call>": ("<start_function_call>", "<end_function_call>", "<escape>"),
    "<|tool_call>": ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
    "<|channel|>": ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>"),
}
TOKEN_FLAGS = ("special", "single_word", "lstrip", "rstrip", "normalized")

# Texts of at least this many characters (0.1 ms) are encoded as a batch of one: the library releases the GIL
# only for batches.
_LONG = 200

# Texts of at least this many characters leave a hundred megabytes or more in the heap of their thread.
_HUGE = 2**20


class Tokenizer:
    """One checkpoint's tokenizer. It is read-only after loading, so threads may share it."""

    def __init__(self, files: TextFiles, folder: Path | None = None) -> None:
        self.folder = folder  # from which another process can load the same tokenizer
        self.library = files.tokenizer
        self.templates: Mapping[str, str] = files.templates
        self.special_names = _special_names(files.settings)  # bos_token etc., as templates use them
        _complete(files, self.special_names)
        added = self.library.get_added_tokens_decoder()
        self.added: dict[int, tokenizers.AddedToken] = dict(sorted(added.items()))
        self.vocab_size = max(self.library.get_vocab_size(), max(self.added, default=-1) + 1)
        self.special_ids = frozenset(self._specials())
        self.bos_id = self._bos(files)
        self.stop_ids = frozenset(self._stops(files))
        self.hidden_ids = self.special_ids - frozenset(self._marks())  # not part of a reply's text
        self.start_ids = self._start_ids(files.settings.get("add_bos_token"))
        self._rule = byte_rule(self.library)
        self._shown, self._all = (
            PieceTable(self.library, self._rule, hidden) if self._rule else None
            for hidden in (self.hidden_ids, frozenset[int]())
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read tokenizer.json and the files next to it, or a GGUF file."""
        return cls(gguf_text_files(folder) if is_gguf(folder) else TextFiles.read(folder), folder)

    @classmethod
    def loading(cls, folder: Path) -> Future[Self]:
        """Load on another thread. It takes half a second for 150,000 tokens, all of it with the GIL."""
        pool = ThreadPoolExecutor(1, "tokenizer")
        tokenizer = pool.submit(timed("the tokenizer")(cls.load), folder)
        pool.shutdown(wait=False)
        return tokenizer

    def encode(self, text: str) -> list[int]:
        """Return the text's tokens without adding any. Special tokens spelled out in the text are parsed."""
        ids: list[int] = self._encoding(text, self.library.encode_batch_fast).ids
        if len(text) >= _HUGE:
            trim_heap()
        return ids

    def encode_placed(self, text: str) -> list[tuple[int, int, int]]:
        """Return the tokens of `encode`, each with the start and end of its characters."""
        encoding = self._encoding(text, self.library.encode_batch)
        return [(token, *span) for token, span in zip(encoding.ids, encoding.offsets, strict=True)]

    def _encoding(self, text: str, batch: Callable[..., list[Any]]) -> Any:
        if len(checked_text(text, "prompt", field="prompt")) < _LONG:
            return self.library.encode(text, add_special_tokens=False)
        return batch([text], add_special_tokens=False)[0]

    def encode_raw(self, text: str) -> list[int]:
        """Return a prompt without a template: the tokenizer's start tokens, then the text.

        An empty text becomes the model's start token, or nothing if it has none.
        """
        if not text and not self.start_ids and self.bos_id is not None:
            return [self.bos_id]
        return [*self.start_ids, *self.encode(text)]

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True, after: Sequence[int] = ()) -> str:
        """Return the text of the tokens, as a detokenizer would."""
        detokenizer = self.detokenizer(skip_special=skip_special, after=after)
        return "".join(map(detokenizer.push, tokens)) + detokenizer.flush()

    def detokenizer(self, *, skip_special: bool = True, after: Sequence[int] = ()) -> Detokenizer:
        """Return a detokenizer for a new text, or for one that continues `after` these tokens."""
        table = self._shown if skip_special else self._all
        if table is not None:
            return ByteDetokenizer(table, after)
        return WindowDetokenizer(self.library, self.hidden_ids if skip_special else frozenset(), after)

    def piece(self, token: int) -> bytes:
        """Return the token's bytes inside a text; empty if the tokenizer has no such token."""
        if self._all is not None and token < self.vocab_size:  # the table keeps what it is asked for
            piece = self._all[token]
            return piece.encode() if isinstance(piece, str) else piece
        name = token_name(self.library, token)
        if name is None:
            return b""
        if self._rule:
            return self._rule.rest(name)
        text: str = self.library.decode([token], skip_special_tokens=False)
        return text.encode()

    def pieces(self, size: int) -> list[bytes]:
        """Return the bytes of the first `size` tokens, if a text is the concatenation of its pieces."""
        assert self._rule is not None
        names, rest = map(self.library.id_to_token, range(size)), self._rule.rest
        return [b"" if name is None else rest(name) for name in names]

    def name(self, token: int) -> str:
        """Return the token's name in the vocabulary; empty if the tokenizer has no such token."""
        return token_name(self.library, token) or ""

    @property
    def joins(self) -> bool:
        """Whether a text is the concatenation of its tokens' pieces."""
        return self._rule is not None

    def id_of(self, name: str) -> int | None:
        """Return the id of the token with this name, or None."""
        token: int | None = self.library.token_to_id(name)
        return token

    def normalized(self, text: str) -> str:
        """Return the text after the tokenizer's normalizer."""
        normalizer = self.library.normalizer
        return normalizer.normalize_str(text) if normalizer else text

    def _specials(self) -> Iterator[int]:
        yield from (token for token, added in self.added.items() if added.special)
        for name in _flat_names(self.special_names):
            if (token := self.id_of(name)) is not None:
                yield token

    def _bos(self, files: TextFiles) -> int | None:
        if isinstance(name := self.special_names.get("bos_token"), str):
            return self.id_of(name)
        return next(
            (ids[0] for source in (files.generation, files.config) if (ids := _ids(source, "bos_token_id"))),
            None,
        )

    def _stops(self, files: TextFiles) -> Iterator[int]:
        yield from _ids(files.generation, "eos_token_id")
        yield from _ids(files.config, "eos_token_id")
        names = [name for name in TURN_ENDS if any(name in source for source in self.templates.values())]
        if isinstance(eos := self.special_names.get("eos_token"), str):
            names.append(eos)
        for name in names:
            if (token := self.id_of(name)) is not None:
                yield token

    def _marks(self) -> Iterator[int]:
        """Return the special tokens that belong to a reply's text, without those that end it."""
        for word, names in REPLY_MARKS.items():
            if any(word in source for source in self.templates.values()):
                ids = (self.id_of(name) for name in names)
                yield from (token for token in ids if token is not None and token not in self.stop_ids)

    def _start_ids(self, add_bos: object) -> list[int]:
        """Return the tokens the post-processor puts before a text, unless the config overrides it."""
        if isinstance(add_bos, bool):
            return [self.bos_id] if add_bos and self.bos_id is not None else []
        encoding = self.library.encode("a")
        return [
            token
            for token, _ in takewhile(
                lambda pair: pair[1], zip(encoding.ids, encoding.special_tokens_mask, strict=True)
            )
        ]


def checked_text(text: object, place: str, *, field: str = "") -> str:
    """Return the text if it is valid Unicode. Errors name the place and carry the field."""
    if not isinstance(text, str):
        raise BadInput(f"{place} must be text, not {type(text).__name__}", field=field)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        lone = f"a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}"
        raise BadInput(f"{place} must be valid Unicode, got {lone}", field=field) from None
    return text


def _special_names(settings: Mapping[str, Any]) -> dict[str, str | list[str]]:
    """Return each `..._token` of the config, and its lists of additional ones."""
    names: dict[str, str | list[str]] = {}
    for key, value in settings.items():
        if key.endswith("_token") and (name := _name(value)):
            names[key] = name
        elif key in ("additional_special_tokens", "extra_special_tokens") and isinstance(value, list):
            names[key] = [name for entry in value if (name := _name(entry))]
    return names


def _name(value: object) -> str | None:
    match value:
        case str(name) | {"content": str(name)}:
            return name or None
    return None


def _flat_names(names: Mapping[str, str | list[str]]) -> Iterable[str]:
    for value in names.values():
        yield from [value] if isinstance(value, str) else value


def _complete(files: TextFiles, names: Mapping[str, str | list[str]]) -> None:
    """Add special tokens that only tokenizer_config.json lists to the tokenizer."""
    tokenizer = files.tokenizer
    for number, entry in _listed(files.settings):
        if tokenizer.id_to_token(number) is None:
            flags = {flag: bool(entry[flag]) for flag in TOKEN_FLAGS if flag in entry}
            tokenizer.add_tokens([tokenizers.AddedToken(entry["content"], **flags)])
            if (given := tokenizer.token_to_id(entry["content"])) != number:
                raise BadCheckpoint(
                    f"tokenizer_config.json gives {entry['content']!r} the id {number}, "
                    f"but tokenizer.json gives it {given}"
                )
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    missing = {
        name for name in _flat_names(names) if name not in known and tokenizer.token_to_id(name) is not None
    }
    tokenizer.add_special_tokens(sorted(missing))


def _listed(settings: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return the config's added tokens in the order of their ids."""
    listed = settings.get("added_tokens_decoder") or {}
    try:
        return sorted(
            (int(key), {**entry, "content": str(entry["content"])}) for key, entry in listed.items()
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadCheckpoint(
            "tokenizer_config.json: added_tokens_decoder must map ids to objects with a content"
        ) from error


def _ids(source: Mapping[str, Any], key: str) -> list[int]:
    value = source.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if bad := [token for token in ids if not isinstance(token, int) or isinstance(token, bool) or token < 0]:
        raise BadCheckpoint(f"{key} must be token ids, not {bad[0]!r}")
    return ids
