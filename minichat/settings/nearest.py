"""What a person may have meant by a name that does not exist."""

from collections.abc import Iterable
from difflib import get_close_matches

MOST = 20  # names that a person reads through


def unknown(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that begins with the name."""
    names = list(known)
    if near := get_close_matches(name.lower(), names, n=1):
        return f"is not known here; did you mean {near[0]}?"
    return f"is not known here; there are {', '.join(names)}" if len(names) <= MOST else "is not known here"
