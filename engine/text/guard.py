"""Keeps control tokens that stand in people's text from acting as such.

A message that spells out `<|im_end|>` must not end its turn. So every control token in a message is broken
with a mark before the template sees it; a template may trim, split or repeat the text, the mark stays in it.
The finished text is cut at the marks and its parts are encoded one by one: none holds a whole control token
that the template did not write. Borders that are ordinary text for the tokenizer (`### User:`), and control
tokens of a single letter, cannot be kept out like this.
"""

import re
from collections.abc import Callable

from engine.text.tokenizer import Tokenizer

MARK = "\ufdd0"  # a code point that Unicode keeps out of texts for ever
WRITERS = ("system", "developer", "assistant")
MARKUP = re.compile(r"</?\w+>")


class Guard:
    """The control tokens of one tokenizer and template: special ones, and those that the template writes."""

    def __init__(self, tokenizer: Tokenizer, template: str) -> None:
        added = [token for token in tokenizer.added.values() if len(token.content) > 1]
        special = [token.content for token in added if token.special]
        written = [token.content for token in added if not token.special and token.content in template]
        words = [name for name in written if not name.isspace()]
        borders = [name for name in words if not MARKUP.fullmatch(name)]
        self._all = _Breaker(special + words, tokenizer.normalized)
        self._borders = _Breaker(special + borders, tokenizer.normalized)

    def breaker(self, role: str) -> Callable[[str], str]:
        """For a message of this role. <think> and its like keep their meaning in what the model wrote."""
        return (self._borders if role in WRITERS else self._all).break_up


class _Breaker:
    def __init__(self, names: list[str], normalize: Callable[[str], str]) -> None:
        either = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"
        self._any = re.compile(either)
        self._first_letter = re.compile(rf"(?=(?:{either}))(.)", re.DOTALL)
        self._normalize = normalize

    def break_up(self, text: str) -> str:
        """The text with a mark inside every control token, overlapping ones too."""
        if self._any.search(text):
            text = self._mark(text)
        if self._any.search(normal := self._normalize(text)):  # full-width letters can spell a token as well
            text = self._mark(normal)
        return text

    def _mark(self, text: str) -> str:
        return self._first_letter.sub(rf"\1{MARK}", text)
