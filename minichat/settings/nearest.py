"""Suggest what was meant by an unknown name."""

from collections.abc import Iterable
from difflib import get_close_matches

MOST = 20  # maximum names to list
_REPLACED = {"host_blocks": "kv_host, in GB"}


def unknown(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that begins with the name."""
    if name in _REPLACED:
        return f"is unknown; use {_REPLACED[name]}"
    names = list(known)
    if near := get_close_matches(name.lower(), names, n=1):
        return f"is unknown; did you mean {near[0]}?"
    return f"is unknown; choose from {', '.join(names)}" if len(names) <= MOST else "is unknown"
