"""A tokenizer as llguidance reads it."""

from llguidance import LLTokenizer, TokenizerWrapper

from engine.api.errors import BadParams
from engine.text.tokenizer import Tokenizer


class Vocabulary:
    """The bytes of every token that stands for text. Behind them a token of our own: the end of the grammar.

    So that token's bit in a mask says whether the reply may end, whatever tokens end it with this model.
    """

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self._tokenizer = tokenizer
        self.size = size
        self.bos_token_id = None
        self.eos_token_id = size
        self.special_token_ids = [*sorted(id for id in tokenizer.special_ids if id < size), size]
        hidden = tokenizer.special_ids
        self.tokens = [b"" if token in hidden else tokenizer.piece(token) for token in range(size)] + [b""]

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode())


def readable(tokenizer: Tokenizer, size: int) -> LLTokenizer:
    """For a model that knows so many tokens; the padding behind the tokenizer's own stands for nothing."""
    if not tokenizer.joins:
        raise BadParams("grammar", "cannot be had: this tokenizer's texts are not its pieces in a row")
    return LLTokenizer(TokenizerWrapper(Vocabulary(tokenizer, size)))
