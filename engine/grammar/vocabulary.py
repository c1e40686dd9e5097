"""A tokenizer in llguidance's form."""

from llguidance import LLTokenizer, TokenizerWrapper

from engine.api.errors import BadParams
from engine.text.tokenizer import Tokenizer


class Vocabulary:
    """The bytes of every text token, followed by an extra token for the end of the grammar.

    Its bit in a mask shows whether the reply may end, independent of the model's stop tokens.
    """

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self._tokenizer = tokenizer
        self.size = size
        self.bos_token_id = None
        self.eos_token_id = size
        hidden = sorted(id for id in tokenizer.hidden_ids if id < size)
        self.special_token_ids = [*hidden, size]
        self.tokens = [*tokenizer.pieces(size), b""]
        for token in hidden:
            self.tokens[token] = b""

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode())


def readable(tokenizer: Tokenizer, size: int) -> LLTokenizer:
    """Return the vocabulary of a model with `size` tokens. Ids beyond the tokenizer's are empty."""
    if not tokenizer.joins:
        raise BadParams("grammar", "is not available: this tokenizer's text is not the sum of its tokens")
    return LLTokenizer(TokenizerWrapper(Vocabulary(tokenizer, size)))
