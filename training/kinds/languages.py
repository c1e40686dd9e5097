"""Messages in other languages, and the reply in that language: English only."""

import tomllib
from dataclasses import dataclass
from functools import cache
from random import Random

from training.chat import Exchange
from training.check import Terms
from training.lexicon import TEXT
from training.phrasing import any_of, roughly

KEPT = 3  # held-out sentences of each language: the last ones
SPACELESS = ("chinese", "japanese")


@dataclass(frozen=True, slots=True)
class Language:
    name: str
    say: str
    asks: tuple[str, ...]
    frames: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def reply(self) -> str:
        return f"{self.say} (I speak English only.)"

    def asked(self, rng: Random, held_out: bool) -> str:
        """A sentence from the list, a filled frame, or words of the language in any order; the meaning does not matter."""
        if held_out:
            return rng.choice(self.asks[-KEPT:])
        draw = rng.random()
        if draw < 0.35:
            return rng.choice(self.asks[:-KEPT])
        if draw < 0.75:
            return any_of(rng, self.frames)
        words = rng.sample(self.words, rng.randint(2, 8))
        text = ("" if self.name in SPACELESS else " ").join(words)
        return text + rng.choice(("", "", "?", ".", "!"))


@cache
def languages() -> tuple[Language, ...]:
    raw = tomllib.loads((TEXT / "languages.toml").read_text(encoding="utf-8"))
    return tuple(
        Language(
            name,
            each["say"],
            tuple(each["asks"]),
            tuple(each["frames"]),
            tuple(dict.fromkeys(each["words"].split())),
        )
        for name, each in raw.items()
    )


def exchanges(rng: Random, held_out: bool = False) -> list[Exchange]:
    language = rng.choice(languages())
    asked = language.asked(rng, held_out)
    if not held_out:
        asked = roughly(rng, asked, slips=0.02)
        asked = without_accents(asked) if rng.random() < 0.15 else asked
    return [Exchange(asked, language.reply, Terms((language.say,)))]


_PLAIN = str.maketrans("áàâäãåéèêëíìîïóòôöõúùûüçñğşıćęłńóśźż", "aaaaaaeeeeiiiiooooouuuucngsicelnoszz")


def without_accents(text: str) -> str:
    """The text without accents, as typed on a keyboard without them."""
    return text.translate(_PLAIN).replace("¿", "").replace("¡", "")
