"""Words, lists and sentences for the tasks, on either side of the split."""

import re
from functools import cache
from random import Random

from training.facts import all_facts
from training.lexicon import every_key, every_word, is_held_out, pick, words
from training.phrasing import ONSETS, made_up

POOLS = ("foods", "objects", "animals", "colors", "names", "cities", "pet_names", "jobs", "hobbies")
# Includes words with a meaning in the engine, so that a task with one is not answered as a question about it.
COMMON = tuple(
    """hello world good morning evening night friend people house water paper music happy little big small great new old thank you please my your
    name is this that we they have make write read word letter text line page number time day week year light sound street garden summer winter
    engine token block cache queue model draft page layer head batch step prompt sampler monitor screen key stream beam seed temperature penalty
    budget snapshot table kernel weight tensor chat test demo python code data file folder server terminal""".split()
)


SHORT = tuple(
    "a b c d e f g h i j k l m n o p q r s t u v w x y z am an as at be by do go he hi if in is it me my no of on or ox so to up us we".split()
)


@cache
def of_the_answers() -> tuple[str, ...]:
    """The words of the facts' answers: any token of the vocabulary may have to be spelled. No held-out word of the lists is among them."""
    found = {
        word
        for fact in all_facts()
        for word in re.findall(r"(?<![\w`*-])[a-z]{3,12}(?![\w`*-])", fact.say[0])
    }
    return tuple(sorted(word for word in found - _kept() if not is_held_out("word " + word)))


ENDINGS = "s er ed ing ly y ish ful ness man less land like ette wise en al ist".split()


@cache
def _stems() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words that orders are about, of which a held-out one is often a token that no other word has; and those of the facts."""
    ours = {word.lower() for key in (*POOLS, "spelled") for word in every_word(key)}
    first = {word for word in ours if is_held_out(word)} | set(COMMON)
    texts = (text for fact in all_facts() for text in (*fact.say, *fact.asks))
    known = ours | {word for text in texts for word in re.findall(r"(?<![\w`*-])[a-z]+(?![\w`*-])", text)}
    rare, usual = (sorted(w for w in found if w.isalpha() and 2 < len(w) < 10) for found in (first, known))
    return tuple(rare), tuple(usual)


@cache
def _kept() -> frozenset[str]:
    return frozenset(word.lower() for key in every_key() for word in words(key, True))


def stretched(rng: Random) -> str:
    """A known word with another ending or beginning, so that its tokens are spelled though the word itself is held out."""
    while True:
        stem = rng.choice(_stems()[rng.random() < 0.25])
        word = stem + rng.choice(ENDINGS) if rng.random() < 0.65 else rng.choice(ONSETS) + stem[1:]
        if word not in _kept() and not is_held_out("word " + word):
            return word


def a_word(rng: Random, held_out: bool, most: int = 12) -> str:
    """One lower-case word. Held out are some invented words, and the listed words that are not in the training text."""
    while True:
        draw = rng.random()
        if draw < 0.2:
            word = rng.choice(COMMON)
            if is_held_out("word " + word) != held_out:
                continue
        elif draw < 0.38:
            word = pick(rng, "spelled", held_out)
        elif draw < 0.5 and not held_out:
            word = rng.choice(of_the_answers())
        elif draw < 0.7 and not held_out:
            word = stretched(rng)
        elif draw < (0.62 if held_out else 0.76):
            word = made_up(rng, rng.choice((1, 2, 2)))
            if is_held_out("word " + word) != held_out:
                continue
        else:
            word = pick(rng, rng.choice(POOLS), held_out).lower()
        if 1 < len(word) <= most and word.isalpha():
            return word


def several(rng: Random, held_out: bool, low: int, high: int) -> list[str]:
    """Different words; the whole list is on the same side of the split."""
    while True:
        size = rng.randint(low, high)
        pool, strange = rng.choice(POOLS), rng.choice((0.0, 0.1, 0.3, 0.8))
        if rng.random() < 0.08:
            found = rng.sample(SHORT, size)
            if is_held_out(" ".join(found)) == held_out:
                return found
            continue
        plain = rng.random() < 0.15
        found = [
            made_up(rng, rng.choice((1, 2, 2, 3))) if rng.random() < strange else common or pick(rng, pool)
            for common in (rng.choices(COMMON, k=size) if plain else [""] * size)
        ]
        if len(set(found)) == size and is_held_out(" ".join(found)) == held_out:
            return found


def comma(items: list[str]) -> str:
    return ", ".join(items)


def any_word(rng: Random, key: str, held_out: bool = False) -> str:
    """A word from a list, or an invented one: words to copy need no meaning."""
    return (
        made_up(rng, rng.choice((1, 2, 2, 3)))
        if not held_out and rng.random() < 0.4
        else pick(rng, key, held_out)
    )


def sentence(rng: Random, held_out: bool) -> str:
    while True:
        text = rng.choice((
            "The {animals} has a {colors} {objects}", "{names} likes {foods}", "I saw a {animals} in {cities}", "My {objects} is {colors}",
            "{names} and {names} eat {foods}", "A {jobs} found a {objects}", "We love {hobbies}", "The {objects} is under the {objects}",
            "{names} lives in {cities}", "Every {animals} wants {foods}", "Good {foods} for the {animals}",
        ))  # fmt: skip
        for key in POOLS:
            while "{" + key + "}" in text:
                text = text.replace("{" + key + "}", any_word(rng, key), 1)
        if is_held_out(text) == held_out:
            return text
