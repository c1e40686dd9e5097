"""Protection against control tokens in the text of messages.

A message that spells out `<|im_end|>` must not end its turn. So each control token in a message is split with
a mark before the template sees it. The mark survives if the template trims, splits or repeats the text. The
rendered text is cut at the marks and its parts are encoded separately, so none holds a whole control token
that the template did not write. This does not cover turn markers that are ordinary text for the tokenizer
(`### User:`) and control tokens of a single character.
"""

import re
from collections.abc import Callable

from engine.text.tokenizer import Tokenizer

MARK = "\ufdd0"  # a Unicode noncharacter, which never occurs in text
WRITERS = ("system", "developer", "assistant")
MARKUP = re.compile(r"</?\w+>")


class Guard:
    """The control tokens of a tokenizer and a template: special tokens, and those the template writes."""

    def __init__(self, tokenizer: Tokenizer, template: str) -> None:
        added = [token for token in tokenizer.added.values() if len(token.content) > 1]
        special = [token.content for token in added if token.special]
        written = [token.content for token in added if not token.special and token.content in template]
        words = [name for name in written if not name.isspace()]
        borders = [name for name in words if not MARKUP.fullmatch(name)]
        self._all = _Breaker(special + words, tokenizer.normalized)
        self._borders = _Breaker(special + borders, tokenizer.normalized)

    def breaker(self, role: str) -> Callable[[str], str]:
        """Return the function that splits control tokens for a role. Models may write tags like <think>."""
        return (self._borders if role in WRITERS else self._all).break_up


class _Breaker:
    def __init__(self, names: list[str], normalize: Callable[[str], str]) -> None:
        either = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"
        self._any = re.compile(either)
        self._first_letter = re.compile(rf"(?=(?:{either}))(.)", re.DOTALL)
        self._normalize = normalize

    def break_up(self, text: str) -> str:
        """Return the text with a mark inside each control token, including overlapping ones."""
        if self._any.search(text):
            text = self._mark(text)
        if self._any.search(normal := self._normalize(text)):  # full-width letters can also spell a token
            text = self._mark(normal)
        return text

    def _mark(self, text: str) -> str:
        return self._first_letter.sub(rf"\1{MARK}", text)
