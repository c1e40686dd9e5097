"""In place of a tokenizer, for random weights that came without one: a token's text is its number."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from engine.api.errors import BadInput


class BareTokenizer:
    """Takes token ids only, and writes them as numbers. It is its own detokenizer: it remembers nothing."""

    templates: Mapping[str, str] = {}
    folder = None  # there are no files of it

    def __init__(self, vocab_size: int, stop_ids: Iterable[int] = ()) -> None:
        self.vocab_size = vocab_size
        self.stop_ids = frozenset(stop_ids)

    def encode_raw(self, text: str) -> list[int]:
        raise BadInput("these random weights came without a tokenizer: give token ids instead of text")

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
