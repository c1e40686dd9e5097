"""Counted nouns."""


def plural(count: int, word: str) -> str:
    """Return the count with its noun: "1 token", "2,048 tokens"."""
    return f"{count:,} {word}{'s' * (count != 1)}"
