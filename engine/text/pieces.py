"""The bytes of each token, derived from the tokenizer's decoder."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tokenizers

from engine.api.errors import BadInput

TOP_ID = 2**32 - 1


@dataclass(frozen=True, slots=True)
class ByteRule:
    """Convert a token's name to bytes: `first` at the start of a text, `rest` elsewhere."""

    rest: Callable[[str], bytes]
    first: Callable[[str], bytes]


class PieceTable(dict[int, str | bytes]):
    """The text of each token: `str` if it is whole characters, else `bytes`. Filled lazily."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, rule: ByteRule, hidden: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._rule = rule
        self._hidden = hidden

    def __missing__(self, token: int) -> str | bytes:
        self[token] = piece = self._read(token, self._rule.rest)
        return piece

    def first(self, token: int) -> str | bytes:
        """Return the piece at the start of a text, where sentencepiece drops the leading space."""
        return self._read(token, self._rule.first)

    def _read(self, token: int, rule: Callable[[str], bytes]) -> str | bytes:
        name = None if token in self._hidden else token_name(self._tokenizer, token)
        if name is None:
            return ""
        piece = rule(name)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return piece


def token_name(tokenizer: tokenizers.Tokenizer, token: int) -> str | None:
    """Return the token's name in the vocabulary, or None for an id beyond the tokenizer's vocabulary."""
    if not 0 <= token <= TOP_ID:
        raise BadInput(f"token id {token} is out of range: ids start at 0")
    name: str | None = tokenizer.id_to_token(token)
    return name


def byte_rule(tokenizer: tokenizers.Tokenizer) -> ByteRule | None:
    """Return the rule of this tokenizer's decoder, or None if a token's bytes depend on other tokens."""
    steps = _flat(json.loads(tokenizer.decoder.__getstate__())) if tokenizer.decoder else []
    match [step["type"] for step in steps]:
        case ["ByteLevel"]:
            return ByteRule(_byte_level, _byte_level)
        case ["Metaspace"]:
            return _metaspace(steps[0])
        case ["Replace", *kinds] if kinds in _SENTENCEPIECE:
            return _sentencepiece(steps)
    return None


_SENTENCEPIECE: tuple[list[str], ...] = (
    ["ByteFallback", "Fuse", "Strip"],
    ["ByteFallback", "Fuse"],
    ["ByteFallback"],
    ["Fuse", "Strip"],
    ["Fuse"],
    [],
)


def _flat(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for part in decoder["decoders"] for step in _flat(part)]


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's byte alphabet: printable Latin-1 maps to itself, other bytes to U+0100 and up."""
    itself = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in itself]
    return {chr(byte): byte for byte in itself} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _byte_level(name: str) -> bytes:
    try:
        return bytes([_BYTE_OF[letter] for letter in name])
    except KeyError:  # an added token, whose name is its text
        return name.encode()


def _metaspace(step: dict[str, Any]) -> ByteRule:
    mark, keeps = step["replacement"], step["prepend_scheme"] == "never"

    def rest(name: str) -> bytes:
        return name.replace(mark, " ").encode()

    def first(name: str) -> bytes:
        return rest(name) if keeps else name.replace(mark, "").encode()

    return ByteRule(rest, first)


def _sentencepiece(steps: list[dict[str, Any]]) -> ByteRule | None:
    old, new = steps[0]["pattern"].get("String"), steps[0]["content"]
    fallback = any(step["type"] == "ByteFallback" for step in steps)
    strip = steps[-1] if steps[-1]["type"] == "Strip" else None
    if old is None or (strip and (strip["content"], strip["start"], strip["stop"]) != (" ", 1, 0)):
        return None

    def rest(name: str) -> bytes:
        if fallback and len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
            try:
                return bytes.fromhex(name[3:5])
            except ValueError:  # an ordinary token that looks like a byte
                return name.encode()
        return name.replace(old, new).encode()

    def first(name: str) -> bytes:
        return rest(name).removeprefix(b" ")

    return ByteRule(rest, first if strip else rest)
