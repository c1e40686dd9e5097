"""Orders composed from parts (text/ordering.toml): an opening, an action, and the text before, inside or after it.

A phrasing with the words of a held-out one is discarded and another one is sampled.
"""

import re
import tomllib
from collections.abc import Callable
from functools import cache
from random import Random

from training.lexicon import TEXT
from training.phrasing import normal, slip

Parts = dict[str, tuple[str, ...]]
SLOTS = {"text": "{t}", "list": "{l}", "numbers": "{l}", "words": "{l}", "word": "{w}"}
LIKE = {"numbers": "list", "words": "text"}  # whose openings they use
QUOTES = ('"{d}"', "'{d}'", "`{d}`", "({d})", "[{d}]")
JOINTS = (
    (": ",) * 8
    + (":\n",) * 3
    + (":\n\n", "\n", "\n\n", " - ", ". ", "; ", " -> ", " => ", ":", " : ", ", namely ", "... ")
)
TERSE = ("{b}: {d}",) * 4 + (
    "{b} {d}", "{b}\n{d}", "{b}:\n{d}", "{b} -> {d}", "{b} - {d}", "{b}({d})", "{d} -> {b}", "{d} {b}", "{d}: {b}", "{d}\n{b}", "{d} ({b})", "{b} = {d}", "{d}, {b}",
    "{b}! {d}", "[{b}] {d}", "{d} | {b}", "{b}, please: {d}", "{b} please: {d}", "{b} this: {d}", "{b} these: {d}", "{b} of {d}", "{b} for {d}",
)  # fmt: skip
WONDERS = (
    "",
    "",
    "",
    "",
    "so ",
    "hey, ",
    "ok, ",
    "and ",
    "now, ",
    "please, ",
    "quick question: ",
    "say, ",
    "well, ",
    "I wonder: ",
    "do you know: ",
    "one question: ",
)
MARKS = ("?", "?", "?", "")


@cache
def _banks() -> dict[str, Parts]:
    raw = tomllib.loads((TEXT / "ordering.toml").read_text(encoding="utf-8"))
    return {
        bank: {part: (lines,) if isinstance(lines, str) else tuple(lines) for part, lines in parts.items()}
        for bank, parts in raw.items()
    }


def composed_ways() -> frozenset[str]:
    """The orders that have parts."""
    return frozenset(bank for bank, parts in _banks().items() if "act" in parts)


def compose(rng: Random, way: str, kept_out: tuple[str, ...]) -> str:
    """A pattern for this order, with its slots still open, without any phrasing of `kept_out`."""
    while True:
        pattern = typed(rng, _forms(way)[rng.choices(_names(way), _weights(way))[0]](rng, way))
        if not any(holds(pattern, kept) for kept in kept_out):
            return pattern


def holds(pattern: str, kept: str) -> bool:
    """Whether the pattern contains every run of words of a phrasing, in any order."""
    said = f" {normal(pattern)} "
    return all(f" {part} " in said for part in fixed_words(kept))


def fixed_words(pattern: str) -> list[str]:
    """The text between the slots."""
    return [part for part in (normal(part) for part in re.split(r"\{\w\}", pattern)) if part]


def typed(rng: Random, pattern: str) -> str:
    """The pattern as typed: random capitals, a typo, no final punctuation. Slots are short, so no typo hits them."""
    draw = rng.random()
    if draw < 0.5:
        pattern = pattern[0].upper() + pattern[1:] if pattern[0] != "{" else pattern
    elif draw < 0.7:
        pattern = pattern.lower()
    if pattern[-1] in "?.!" and rng.random() < 0.25:
        pattern = pattern[:-1]
    return slip(rng, pattern) if rng.random() < 0.06 else pattern


Form = Callable[[Random, str], str]


def _direct(rng: Random, way: str) -> str:
    """The text is part of the order itself."""
    before, after = _bid(rng)
    act = rng.choice(_banks()[way]["act"]).replace("{o}", _data(rng, way, bare=0.5))
    return before + act + after


def _ahead(rng: Random, way: str) -> str:
    """A word refers to the text that follows."""
    before, after = _bid(rng)
    act = rng.choice(_banks()[way]["act"]).replace("{o}", _word(rng, way))
    if after.endswith("?"):
        return before + act + after + rng.choice((" ", "\n", " ", "\n\n")) + _data(rng, way)
    return before + act + after.rstrip(".!") + rng.choice(JOINTS) + _data(rng, way)


def _behind(rng: Random, way: str) -> str:
    """The text first, then the order, which refers back to it."""
    before, after = _bid(rng)
    kind = _kind(way)
    lead = rng.choice(_banks()["leads"][LIKE.get(kind, kind)])
    back = "behind_many" if kind in ("list", "numbers") and rng.random() < 0.7 else "behind"
    act = rng.choice(_banks()[way]["act"]).replace("{o}", rng.choice(_banks()["words"][back]))
    order = before + act + after
    if lead.endswith((". ", "\n")) and rng.random() < 0.6:
        order = order[0].upper() + order[1:]
    return lead.replace("{d}", _data(rng, way)) + order


def _shown(rng: Random, way: str) -> str:
    """The order as a description of the result, next to the text."""
    question = rng.random() < 0.2
    frame = rng.choice(_banks()["shown"]["question" if question else "order"])
    return frame.replace("{a}", rng.choice(_banks()[way]["as"])).replace("{d}", _data(rng, way))


def _asked(rng: Random, way: str) -> str:
    """The order as a question."""
    before, ask = rng.choice(WONDERS), rng.choice(_banks()[way]["ask"])
    if rng.random() < 0.7:
        return before + ask.replace("{o}", _data(rng, way, bare=0.5)) + rng.choice(MARKS)
    ask = ask.replace("{o}", _word(rng, way))
    return before + ask + rng.choice(("? ", ": ", ":\n", "?\n", " - ")) + _data(rng, way)


def _terse(rng: Random, way: str) -> str:
    return rng.choice(TERSE).replace("{b}", rng.choice(_banks()[way]["bare"])).replace("{d}", _data(rng, way))


FORMS: dict[str, tuple[Form, str, float]] = {
    "direct": (_direct, "act", 0.2),
    "ahead": (_ahead, "act", 0.26),
    "behind": (_behind, "act", 0.2),
    "shown": (_shown, "as", 0.2),
    "asked": (_asked, "ask", 0.25),
    "terse": (_terse, "bare", 0.08),
}  # with the parts that each needs, and its frequency


@cache
def _forms(way: str) -> dict[str, Form]:
    return {name: form for name, (form, part, _) in FORMS.items() if part in _banks()[way]}


@cache
def _names(way: str) -> tuple[str, ...]:
    return tuple(_forms(way))


@cache
def _weights(way: str) -> tuple[float, ...]:
    return tuple(FORMS[name][2] for name in _names(way))


def _kind(way: str) -> str:
    return _banks()[way]["on"][0]


def _bid(rng: Random) -> tuple[str, str]:
    """The text before and after an order: a request, or a question with its mark."""
    after = rng.choice(_banks()["bids"]["after"])
    if rng.random() < 0.3:
        return rng.choice(_banks()["bids"]["question"]), after + "?"
    return rng.choice(_banks()["bids"]["order"]), after + rng.choice(("", ".", ".", "!"))


def _word(rng: Random, way: str) -> str:
    """A word for the following text; a list of words has one more."""
    kind = _kind(way)
    words = _banks()["words"]["text" if kind == "words" else kind]
    if way in ("sort_words", "reverse_list") and rng.random() < 0.25:
        return rng.choice(("these words", "the words", "the following words", "my words"))
    return rng.choice(words)


def _data(rng: Random, way: str, bare: float = 0.72) -> str:
    """The slot of the text itself: plain, in quotes, or with a word for its type."""
    kind = _kind(way)
    slot, draw = SLOTS[kind], rng.random()
    if draw < bare:
        return slot
    if kind == "word" and draw < bare + 0.5 * (1 - bare):
        return rng.choice(_banks()["words"]["named"]).replace("{o}", slot)
    if kind == "list" and draw < bare + 0.3 * (1 - bare):
        return f"the list {slot}"
    return rng.choice(QUOTES if kind in ("list", "numbers") else QUOTES[:3]).replace("{d}", slot)
