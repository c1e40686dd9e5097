"""Requests for a larger model, and an honest refusal with an alternative. The text is in text/cannot.toml."""

import tomllib
from functools import cache
from random import Random
from string import Formatter

from training.chat import Exchange
from training.check import Terms
from training.kinds.slots import sentence, several
from training.lexicon import TEXT
from training.phrasing import any_of, made_up, roughly

SHARES = {"code": 0.42, "text": 0.3, "poem": 0.16, "picture": 0.12}
CODE = (
    "print({a})", "for {a} in {b}: print({a})", "def {a}(): return {b}", "{a} = {b} + 1", "if {a} > 3: {b}()", "let {a} = {b};", "while true do {a}", "x = [{a}, {b}]", "function {a}() {{ {b} }}",
    "import {a}", "SELECT {a} FROM {b}", "{a}.{b}()", "return {a}[{b}]", "echo ${a}",
)  # fmt: skip


TASKS = {
    "code": ("python", "css", "c++", "sql", "regex", "haskell", "code", "program", "java", "function", "unit test", "web page", "pull request", "stack trace", "shell script"),
    "text": ("translate", "summarize", "spelling"),
    "picture": ("draw", "paint", "picture", "photo", "video", "sing ", "play some music"),
    "poem": ("write", "compose"),
}  # fmt: skip


def refusal(task: str) -> str | None:
    """The reply to a task: that of the first topic with a word in it."""
    found = (name for name, words in TASKS.items() if any(word in task for word in words))
    return next((str(_topics()[name]["say"]) for name in found), None)


@cache
def _topics() -> dict[str, dict]:
    return tomllib.loads((TEXT / "cannot.toml").read_text(encoding="utf-8"))


def patterns(topic: str, held_out: bool) -> tuple[str, ...]:
    return tuple(_topics()[topic]["test" if held_out else "train"])


BIDS = (
    "", "", "", "please ", "can you ", "could you ", "would you ", "will you ", "I want you to ", "I need you to ", "I would like you to ", "help me to ", "now ", "your task: ", "you should ", "try to ", "are you able to ", "is it possible to ", "I'd like you to ", "how do you ", "why don't you ",
)  # fmt: skip
TAILS = {
    "code": ("", " in {l}", " in {l}", " with {l}", " using {l}", " for me in {l}", " as a {l} file", " for my {l} project", ", {l} please", " ({l})", " in {l} for my homework"),
    "poem": ("", " about {x}", " about {x}", " on {x}", " for {x}", " with {x} in it", " on the subject of {x}", " that is about {x}", " for me", " dealing with {x}"),
    "picture": ("", "", " for me", " in color", " please", " with a hat", " in black and white", " as a picture", " for my wall"),
}  # fmt: skip


def _composed(rng: Random, name: str) -> str:
    """A request opening, a verb, an object and an ending, with the language or subject still open."""
    bid, verb = rng.choice(BIDS), rng.choice(_topics()[name]["verbs"])
    thing = rng.choice(_topics()[name]["l" if name == "poem" else "x"])
    mark = (
        "?"
        if bid.startswith(("can", "could", "would", "will", "are", "is", "how", "why"))
        else rng.choice(("", ".", "!"))
    )
    return f"{bid}{verb} {thing}{rng.choice(TAILS[name])}{mark}"


def _text(rng: Random, held_out: bool) -> str:
    """The text to change: a sentence, or a few words."""
    text = sentence(rng, held_out) if rng.random() < 0.6 else " ".join(several(rng, held_out, 1, 5))
    return text.lower() if rng.random() < 0.3 else text


def _snippet(rng: Random) -> str:
    return rng.choice(CODE).format(a=made_up(rng), b=made_up(rng))


def exchanges(rng: Random, held_out: bool = False) -> list[Exchange]:
    """A request that is too hard. Some phrasings are held out."""
    name = rng.choices(tuple(SHARES), tuple(SHARES.values()))[0]
    topic, pattern = _topics()[name], any_of(rng, patterns(name, held_out))
    if not held_out and name in TAILS and rng.random() < 0.45:
        pattern = _composed(rng, name)
    slots = {key: rng.choice(topic[key]) for key in ("l", "x", "q", "r") if key in topic}
    if any(field == "t" for _, field, _, _ in Formatter().parse(pattern)):
        slots["t"] = _text(rng, held_out)
    asked = pattern.format(c=_snippet(rng), **slots)
    asked = asked[0].upper() + asked[1:]
    if not held_out:
        asked = roughly(rng, asked, slips=0.05)
    return [Exchange(asked, topic["say"], Terms(tuple(topic["must"])))]
