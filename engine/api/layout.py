"""Which text each token of a prompt came from."""

from typing import NamedTuple


class TokenSpan(NamedTuple):
    """The characters of a message that one prompt token covers. Message -1: the template, or unknown."""

    message: int
    start: int = 0
    end: int = 0


class PromptLayout(NamedTuple):
    """A prompt as the model reads it, token by token."""

    ids: tuple[int, ...] = ()
    places: tuple[TokenSpan, ...] = ()
