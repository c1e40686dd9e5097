"""Words for the slots, split into training words and held-out words."""

import tomllib
from functools import cache
from pathlib import Path
from random import Random
from zlib import crc32

TEXT = Path(__file__).parent / "text"
_BARRED = ("people", "tasks", "opinions", "things", "near")  # entries with spaces, split at a bar

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = tuple(
    "January February March April May June July August September October November December".split()
)


def is_held_out(text: str, one_in: int = 8) -> bool:
    """Whether a word is held out, by its hash: the same on every machine, so no second list is needed."""
    return crc32(text.encode()) % one_in == 0


@cache
def _lists() -> dict[str, tuple[str, ...]]:
    raw = tomllib.loads((TEXT / "lexicon.toml").read_text(encoding="utf-8"))
    lists = {}
    for key, text in raw.items():
        parts = " ".join(text.split()).split("|") if key in _BARRED else text.split()
        lists[key] = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    return lists


@cache
def words(key: str, held_out: bool) -> tuple[str, ...]:
    """The words of one list that belong to this side of the split."""
    return tuple(w for w in _lists()[key] if is_held_out(w) == held_out)


def every_key() -> tuple[str, ...]:
    return tuple(_lists())


def every_word(key: str) -> tuple[str, ...]:
    return _lists()[key]


def pick(rng: Random, key: str, held_out: bool = False) -> str:
    return rng.choice(words(key, held_out))
