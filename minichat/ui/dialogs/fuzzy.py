"""Letters that a text has in the same order, and how well they match: what Textual's search tries
exponentially many times for a long text is found in one pass for each letter.
"""

import re

_LONGEST = 200  # characters of a text that are searched
_NEVER = -1
_ADJACENT = 2
_WORD = re.compile(r"\w+")


def match(query: str, text: str) -> tuple[int, tuple[int, ...]]:
    """The score and the matched positions; (0, ()) if a letter is missing.

    Each letter counts 1, and 1 more at the start of a word, and 2 more right after the letter before it.
    """
    query, text = _lower(query), _lower(text[:_LONGEST])
    if not query or not _contains(query, text):
        return 0, ()
    starts = {found.start() for found in _WORD.finditer(text)}
    before: list[int] = []  # the best score of the letters so far, by the position of the last one
    steps: list[list[int]] = []  # the position of the letter before it
    for number, letter in enumerate(query):
        scores, came = [_NEVER] * len(text), [_NEVER] * len(text)
        best, best_at = (_NEVER, _NEVER) if number else (0, _NEVER)
        for at, found in enumerate(text):
            if found == letter:
                adjacent = (
                    before[at - 1] + _ADJACENT if number and at and before[at - 1] != _NEVER else _NEVER
                )
                value = max(adjacent, best)
                if value != _NEVER:
                    scores[at] = value + 1 + (at in starts)
                    came[at] = at - 1 if adjacent >= best and number else best_at
            if number and before[at] > best:
                best, best_at = before[at], at
        before = scores
        steps.append(came)
    score = max(before)
    at, places = before.index(score), list[int]()
    for came in reversed(steps):
        places.append(at)
        at = came[at]
    return score, tuple(reversed(places))


def _contains(query: str, text: str) -> bool:
    letters = iter(text)
    return all(letter in letters for letter in query)


def _lower(text: str) -> str:
    """In lower case, with as many letters."""
    return "".join(low if len(low := letter.lower()) == 1 else letter for letter in text)
