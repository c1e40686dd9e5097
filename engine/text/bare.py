"""In place of a tokenizer, for random weights that came without one: a token's text is its number."""

from collections.abc import Mapping, Sequence
from typing import Self

from engine.config import ModelConfig
from engine.errors import BadInput


class BareTokenizer:
    """Takes token ids only, and writes them as numbers. It is its own detokenizer: it remembers nothing."""

    templates: Mapping[str, str] = {}

    def __init__(self, config: ModelConfig) -> None:
        self.vocab_size = config.vocab
        self.stop_ids = frozenset(config.stop_ids)

    def encode_raw(self, text: str) -> list[int]:
        raise BadInput("these random weights came without a tokenizer: give token ids instead of text")

    def detokenizer(self, *, skip_special: bool = True, after: Sequence[int] = ()) -> Self:
        return self

    def push(self, token: int) -> str:
        return f"{token} "

    def flush(self) -> str:
        return ""

    def copy(self) -> Self:
        return self
