"""Finding what was said: every word of the query has to be in the message, in any case and order."""

import re
from dataclasses import dataclass

BEFORE, AFTER = 30, 90  # characters of a snippet around the first word found


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A message that holds all the words; without a message it is the chat's title that does."""

    chat: int
    title: str
    closed: bool
    message: int | None
    role: str
    at: float
    snippet: str
    marks: tuple[tuple[int, int], ...]  # where in the snippet the words stand


def words_of(query: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(query.casefold().split()))


def holds(text: str, word: str) -> bool:
    """SQL calls this as a function; with LIKE, only ASCII letters would match in both cases."""
    return word in text.casefold()


def snippet(text: str, words: tuple[str, ...]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """A line around the first word found, and the places of all words in it."""
    pattern = re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))), re.IGNORECASE)
    found = pattern.search(text)
    start = max(0, found.start() - BEFORE) if found else 0
    end = (found.end() if found else 0) + AFTER
    line = " ".join(text[start:end].split())
    line = f"{'…' if start else ''}{line}{'…' if end < len(text) else ''}"
    return line, tuple(match.span() for match in pattern.finditer(line))
