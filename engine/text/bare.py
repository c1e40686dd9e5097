"""A stand-in for the tokenizer of random weights that have none: a token's text is its id."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from engine.api.errors import BadInput


class BareTokenizer:
    """Accepts only token ids, and writes them as numbers. It has no state, so it is its own detokenizer."""

    templates: Mapping[str, str] = {}
    folder = None  # it has no files

    def __init__(self, vocab_size: int, stop_ids: Iterable[int] = ()) -> None:
        self.vocab_size = vocab_size
        self.stop_ids = frozenset(stop_ids)

    def encode_raw(self, text: str) -> list[int]:
        raise BadInput("these random weights have no tokenizer; use token ids instead of text")

    def piece(self, token: int) -> bytes:
        return f"{token} ".encode()

    def detokenizer(self, *, skip_special: bool = True, after: Sequence[int] = ()) -> Self:
        return self

    def push(self, token: int) -> str:
        return f"{token} "

    def flush(self) -> str:
        return ""

    def copy(self) -> Self:
        return self
