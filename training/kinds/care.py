"""Situations that need human help: crises, danger, medical emergencies; and ordinary messages that are near them.

The text is in text/care.toml and text/ordinary.toml.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from random import Random

from training.chat import Exchange
from training.check import Honest, Terms
from training.facts import all_facts
from training.kinds.unknown import KNOW
from training.lexicon import TEXT
from training.phrasing import any_of, made_up, muddled, pictured, roughly

SHARES = {"crisis": 0.36, "friend": 0.09, "danger": 0.1, "harm": 0.13, "alarm": 0.26, "doctor": 0.08}
NEAR = {
    "leave": 0.3,
    "world": 0.32,
    "noted": 0.12,
    "this": 0.1,
    "lost": 0.08,
    "stop": 0.05,
    "anew": 0.04,
    "broken": 0.04,
    "sight": 0.03,
}
TEARS = tuple("😭 😢 💔 😞 😔 🥺 😩 😰 😱 🆘 😟 🙏 🖤 🥀".split())
LEADS = (
    "", "", "", "", "", "hi, ", "please help me, ", "listen, ", "i don't know what to do. ", "hey, ", "ok so ", "honestly ",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Need:
    """A reply, and the messages it is for: whole ones, and patterns with a list for each slot."""

    say: str
    must: tuple[str, ...]
    patterns: tuple[str, ...]
    slots: dict[str, tuple[str, ...]]
    train: tuple[str, ...]
    test: tuple[str, ...]

    def message(self, rng: Random, held_out: bool) -> str:
        if held_out:
            return rng.choice(self.test)
        if rng.random() < 0.5:
            return any_of(rng, self.train)
        text = any_of(rng, self.patterns).format(
            **{key: rng.choice(fills) for key, fills in self.slots.items()}
        )
        return text[0].upper() + text[1:]


@cache
def needs() -> dict[str, Need]:
    raw = tomllib.loads((TEXT / "care.toml").read_text(encoding="utf-8"))
    return {name: _read(each) for name, each in raw.items()}


def _read(raw: dict) -> Need:
    return Need(
        say=raw["say"],
        must=tuple(raw["must"]),
        patterns=(*raw["do"], *raw.get("ing", ())),
        slots={key: tuple(raw[key]) for key in ("d", "g", "r", "x") if key in raw},
        train=tuple(raw["train"]),
        test=tuple(raw["test"]),
    )


def exchanges(rng: Random, held_out: bool = False) -> list[Exchange]:
    """A message, as typed in a hurry."""
    need = needs()[rng.choices(tuple(SHARES), tuple(SHARES.values()))[0]]
    message = need.message(rng, held_out)
    if not held_out:
        message = muddled(rng, message, loses=False) if rng.random() < 0.2 else message
        lead = rng.choice(LEADS)
        message = roughly(
            rng,
            lead + (message[0].lower() + message[1:] if lead and not message.startswith("I") else message),
        )
        message = message.replace("I am", "I'm") if rng.random() < 0.15 else message
        message = message.replace("'", "") if rng.random() < 0.35 else message
        message = pictured(rng, message, TEARS) if rng.random() < 0.1 else message
    return [Exchange(message, need.say, Terms(need.must))]


@cache
def near() -> dict[str, dict]:
    return tomllib.loads((TEXT / "ordinary.toml").read_text(encoding="utf-8"))


def ordinary(rng: Random, held_out: bool = False) -> list[Exchange]:
    """A message with the words or the tone of a crisis that is none, and the usual answer to it."""
    topic = near()[rng.choices(tuple(NEAR), tuple(NEAR.values()))[0]]
    message = any_of(rng, tuple(topic["test" if held_out else "train"])).format(w=made_up(rng))
    if not held_out:
        message = message if rng.random() < 0.8 else rng.choice(LEADS) + message[0].lower() + message[1:]
        message = roughly(rng, message)
        message = message.replace("'", "") if rng.random() < 0.35 else message
    if "say" in topic:
        return [Exchange(message, rng.choice(topic["say"]), Terms(tuple(topic["must"])))]
    if "fact" not in topic:
        return [Exchange(message, KNOW, Honest())]
    fact = next(fact for fact in all_facts() if fact.id == topic["fact"])
    return [Exchange(message, rng.choice(fact.say), fact.check)]
