"""Full-text search: a message matches if it contains every word of the query, ignoring case."""

import re
from dataclasses import dataclass

BEFORE, AFTER = 30, 90  # characters of a snippet around the first match


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A matching message, or a chat whose title matches if there is no message."""

    chat: int
    title: str
    closed: bool
    message: int | None
    role: str
    at: float
    snippet: str
    marks: tuple[tuple[int, int], ...]  # positions of the words in the snippet
    found: str  # what to look for in the message


def words_of(query: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(query.casefold().split()))


def holds(text: str, word: str) -> bool:
    """An SQL function; LIKE ignores case only for ASCII letters."""
    return word in text.casefold()


def snippet(text: str, words: tuple[str, ...]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """A line around the first match, and the positions of all words in it."""
    pattern = re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))), re.IGNORECASE)
    found = pattern.search(text)
    start = max(0, found.start() - BEFORE) if found else 0
    end = (found.end() if found else 0) + AFTER
    line = " ".join(text[start:end].split())
    line = f"{'…' if start else ''}{line}{'…' if end < len(text) else ''}"
    return line, tuple(match.span() for match in pattern.finditer(line))


def found_in(text: str, words: tuple[str, ...]) -> str:
    """What to look for: all words if they are side by side, else the one that comes first."""
    together, folded = " ".join(words), text.casefold()
    return together if together in folded else min(words, key=folded.find)
