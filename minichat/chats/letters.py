"""The letters of chats: a, b, c ... z, aa, ab ... They identify the owners of blocks."""

from collections.abc import Collection, Iterator
from itertools import count, product
from string import ascii_lowercase


def free_letter(taken: Collection[str]) -> str:
    """The first letter that no open chat has."""
    return next(letter for letter in _letters() if letter not in taken)


def color_index(letter: str) -> int:
    """The chat's index in an owner palette; a shorter palette repeats."""
    index = 0
    for character in letter:
        index = index * 26 + ascii_lowercase.find(character) + 1
    return max(index - 1, 0)


def _letters() -> Iterator[str]:
    for length in count(1):
        yield from map("".join, product(ascii_lowercase, repeat=length))
