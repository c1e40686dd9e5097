"""Counts in sentences."""


def plural(count: int, word: str) -> str:
    """1 token, 2,048 tokens."""
    return f"{count:,} {word}{'s' * (count != 1)}"
