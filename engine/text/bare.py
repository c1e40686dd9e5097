"""A stand-in for the tokenizer of random weights that have none: a token's text is its id."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from engine.text.tokenizer import checked_text

_PARTS = re.compile(r"(?<![0-9])([0-9]{1,9}) |.", re.DOTALL)


class BareTokenizer:
    """A token's text is its id and a blank; each byte of other text is a token.

    A chat's next prompt thus has the ids of its replies. It has no state, so it is its own detokenizer.
    """

    templates: Mapping[str, str] = {}
    folder = None  # it has no files
    start_ids: Sequence[int] = ()

    def __init__(self, vocab_size: int, stop_ids: Iterable[int] = ()) -> None:
        self.vocab_size = vocab_size
        self.stop_ids = frozenset(stop_ids)

    def encode_raw(self, text: str) -> list[int]:
        return [token for token, _, _ in self.encode_placed(text)]

    encode = encode_raw

    def encode_placed(self, text: str) -> list[tuple[int, int, int]]:
        """Return each token with where its text begins and ends."""
        placed = []
        for part in _PARTS.finditer(checked_text(text, "prompt", field="prompt")):
            known = part[1] is not None and int(part[1]) < self.vocab_size
            tokens = [int(part[1])] if known else [byte % self.vocab_size for byte in part[0].encode()]
            placed += [(token, *part.span()) for token in tokens]
        return placed

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True, after: Sequence[int] = ()) -> str:
        return "".join(map(self.push, tokens))

    def piece(self, token: int) -> bytes:
        return f"{token} ".encode()

    def name(self, token: int) -> str:
        return str(token)

    def detokenizer(self, *, skip_special: bool = True, after: Sequence[int] = ()) -> Self:
        return self

    def push(self, token: int) -> str:
        return f"{token} "

    def flush(self) -> str:
        return ""

    def copy(self) -> Self:
        return self
