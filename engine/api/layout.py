"""What the tokens of a prompt stand for."""

from typing import NamedTuple


class TokenSpan(NamedTuple):
    """The characters that one token of a prompt stands for. Message -1: the template's own, or not known."""

    message: int
    start: int = 0
    end: int = 0


class PromptLayout(NamedTuple):
    """A prompt as the model reads it, token by token."""

    ids: tuple[int, ...] = ()
    places: tuple[TokenSpan, ...] = ()
