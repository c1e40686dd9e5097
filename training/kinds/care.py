"""Situations that need human help: crises, danger, medical emergencies; and ordinary messages that are near them.

The text is in text/care.toml (the replies, and messages in many words), text/distress.toml and text/said.toml (in few words),
text/calls.toml (in other languages) and text/ordinary.toml.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from random import Random

from training.chat import Exchange
from training.check import Honest, Terms
from training.facts import all_facts
from training.kinds.languages import languages, without_accents
from training.kinds.manners import FEELINGS
from training.kinds.unknown import KNOW
from training.lexicon import TEXT
from training.phrasing import any_of, made_up, muddled, pictured, roughly, varied

SHARES = {
    "crisis": 0.26,
    "low": 0.12,
    "grief": 0.09,
    "friend": 0.07,
    "danger": 0.1,
    "harm": 0.09,
    "alarm": 0.23,
    "doctor": 0.12,
}
NUMBERS = ("112", "911", "988", "116 123", "119", "120")
ABROAD = 0.08  # of the messages, in another language
NEAR = {
    "leave": 0.2,
    "world": 0.23,
    "noted": 0.24,
    "joy": 0.08,
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
    """A reply, and the messages it is for: whole ones, patterns with a list for each slot, and short ones."""

    say: str
    must: tuple[str, ...]
    patterns: tuple[str, ...]
    slots: dict[str, tuple[str, ...]]
    train: tuple[str, ...]
    states: tuple[str, ...]  # how somebody feels
    said: tuple[str, ...]  # sentences that have no frame in common
    short: tuple[str, ...]
    filling: dict[str, tuple[str, ...]]  # the slots of `short`
    test: tuple[str, ...]

    def message(self, rng: Random, held_out: bool) -> str:
        if held_out:
            return rng.choice(self.test)
        if not self.train or rng.random() < 0.55:
            return self._in_few_words(rng)
        if rng.random() < 0.5:
            return any_of(rng, self.train)
        return _begun(_filled(rng, any_of(rng, self.patterns), self.slots))

    def _in_few_words(self, rng: Random) -> str:
        if rng.random() < 0.45:
            return _begun(varied(rng, rng.choice(self.said)))
        if self.states and rng.random() < 0.4:
            return _begun(any_of(rng, FEELINGS).format(f=rng.choice(self.states)))
        return _begun(_filled(rng, any_of(rng, self.short), self.filling))


def _filled(rng: Random, pattern: str, slots: dict[str, tuple[str, ...]]) -> str:
    return pattern.format(**{key: rng.choice(fills) for key, fills in slots.items()})


def _begun(text: str) -> str:
    return text[0].upper() + text[1:]


@cache
def needs() -> dict[str, Need]:
    many, few = (
        tomllib.loads((TEXT / name).read_text(encoding="utf-8")) for name in ("care.toml", "distress.toml")
    )
    return {name: _read(each, few[name], said()[name]) for name, each in many.items()}


@cache
def said() -> dict[str, tuple[str, ...]]:
    raw = tomllib.loads((TEXT / "said.toml").read_text(encoding="utf-8"))
    return {name: tuple(lines) for name, lines in raw.items()}


def _read(many: dict, few: dict, said: tuple[str, ...]) -> Need:
    return Need(
        say=many["say"],
        must=tuple(many["must"]),
        patterns=(*many.get("do", ()), *many.get("ing", ())),
        slots={key: tuple(many[key]) for key in ("d", "g", "r", "x") if key in many},
        train=tuple(many.get("train", ())),
        states=tuple(few.get("states", ())),
        said=said,
        short=tuple(few["short"]),
        filling={key: tuple(fills) for key, fills in few.get("slots", {}).items()},
        test=tuple(many["test"] if "test" in many else few["test"]),
    )


@dataclass(frozen=True, slots=True)
class Calm:
    """A reply without helplines and emergency numbers."""

    def right(self, reply: str) -> bool:
        return not numbers_in(reply)


def numbers_in(reply: str) -> list[str]:
    """The helplines and emergency numbers in a reply."""
    return [number for number in NUMBERS if number in reply]


@cache
def in_few_words() -> dict[str, tuple[Exchange, ...]]:
    """Held-out messages by somebody who had not read the text, for each need, and ordinary ones near them (`calm`)."""
    raw = tomllib.loads((TEXT / "distress.toml").read_text(encoding="utf-8"))
    return {
        name: tuple(
            Exchange(text, "", Terms(tuple(each["must"])) if "must" in each else Calm())
            for text in each["test"]
        )
        for name, each in raw.items()
    }


@dataclass(frozen=True, slots=True)
class Call:
    """Calls for help in another language, and the reply in it."""

    reply: str
    must: tuple[str, ...]
    asks: tuple[str, ...]
    test: tuple[str, ...]


@cache
def calls() -> tuple[Call, ...]:
    raw = tomllib.loads((TEXT / "calls.toml").read_text(encoding="utf-8"))
    return tuple(
        Call(
            reply=f"{language.say} {call['say']} (I speak English only.)",
            must=(language.say, call["number"]),
            asks=(*call["crisis"], *call["alarm"]),
            test=(*call["test_crisis"], *call["test_alarm"]),
        )
        for language in languages()
        for call in (raw[language.name],)
    )


def abroad(rng: Random, held_out: bool) -> list[Exchange]:
    call = rng.choice(calls())
    message = rng.choice(call.test) if held_out else any_of(rng, call.asks)
    if not held_out:
        message = roughly(rng, message, slips=0.02)
        message = without_accents(message) if rng.random() < 0.15 else message
    return [Exchange(message, call.reply, Terms(call.must))]


def exchanges(rng: Random, held_out: bool = False) -> list[Exchange]:
    """A message, as typed in a hurry."""
    if rng.random() < ABROAD:
        return abroad(rng, held_out)
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
    name = rng.choices(tuple(NEAR), tuple(NEAR.values()))[0]
    topic = near()[name]
    if name in said() and not held_out and rng.random() < 0.5:
        message = varied(rng, rng.choice(said()[name]))
    else:
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
