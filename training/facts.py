"""Facts about minichat, the questions for each, and the terms of a right answer."""

import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from random import Random

from training.check import Terms
from training.lexicon import TEXT
from training.phrasing import LITERAL, any_of, families, fill, phrase, variants

BANKS = ("what", "why", "how", "do", "key", "command", "raise", "lower", "default", "are")
DIRECT = 0.25


@dataclass(frozen=True, slots=True)
class OneAnswer:
    """The terms of a fact, in one answer: a question with "and" in it is not two questions."""

    terms: tuple[str, ...]

    def right(self, reply: str) -> bool:
        return Terms(self.terms).right(reply) and not two_answers(reply)


def two_answers(reply: str) -> bool:
    """Whether this is an answer of a fact, and then another one or the same again."""
    parts = reply.strip().split("\n\n")
    known = answers()
    return any(
        "\n\n".join(parts[:at]) in known and "\n\n".join(parts[at:]) in known for at in range(1, len(parts))
    )


@cache
def answers() -> frozenset[str]:
    return frozenset(each for fact in all_facts() for each in fact.say)


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact. `slots` are pairs of a bank and a filler for {x}; `asks`, `ways` and `direct` are whole questions, some with options in brackets.

    `often` is how many times as frequent it is as most facts: some are harder to tell apart."""

    id: str
    room: str
    say: tuple[str, ...]
    must: tuple[str, ...]
    more: str
    slots: tuple[tuple[str, str], ...]
    pairs: tuple[tuple[str, str], ...]
    asks: tuple[str, ...]
    ways: tuple[str, ...]
    direct: tuple[str, ...]
    often: int

    @property
    def check(self) -> OneAnswer:
        return OneAnswer(self.must)

    def questions(self, held_out: bool) -> list[str]:
        """Every question for this fact on one side of the split."""
        found = [q for bank, x in self.slots for q in _asked(bank, held_out, x)]
        found += [fill(p, a=a, b=b) for a, b in self.pairs for p in families("versus", held_out)]
        return found + [each for pattern in self.asked(held_out) for each in variants(pattern)]

    def ask(self, rng: Random, held_out: bool) -> str:
        """A random question. In training a fourth are direct; of the others each slot and pair is equally likely, and where there are any, whole questions are half at most."""
        if self.direct and not held_out and rng.random() < DIRECT:
            return any_of(rng, self.direct)
        asks = self._kept() if held_out else self._others()
        framed = len(self.slots) + len(self.pairs)
        at = rng.randrange(framed + (min(framed, len(asks)) if framed else len(asks)))
        if at < len(self.slots):
            bank, x = self.slots[at]
            return phrase(rng, bank, held_out, x=x)
        at -= len(self.slots)
        if at < len(self.pairs):
            a, b = self.pairs[at]
            return phrase(rng, "versus", held_out, a=a, b=b)
        return any_of(rng, asks)

    def asked(self, held_out: bool) -> tuple[str, ...]:
        """The whole questions on one side of the split: of four or more `asks`, the last is held out."""
        return self._kept() if held_out else self._others() + self.direct

    def _kept(self) -> tuple[str, ...]:
        return self.asks[-1:] if len(self.asks) >= 4 else ()

    def _others(self) -> tuple[str, ...]:
        return self.asks[: len(self.asks) - len(self._kept())] + self.ways


def _asked(bank: str, held_out: bool, x: str) -> list[str]:
    patterns = families(bank, held_out)
    return [p.format(x=x) for p in patterns] if bank in LITERAL else [fill(p, x=x) for p in patterns]


def _read(room: str, raw: dict) -> Fact:
    return Fact(
        id=raw["id"],
        room=room,
        say=tuple(raw["say"]),
        must=tuple(raw["must"]),
        more=raw.get("more", ""),
        slots=tuple((bank, x) for bank in BANKS for x in raw.get(bank, ())),
        pairs=tuple((a, b) for a, b in raw.get("versus", ())),
        asks=tuple(raw.get("ask", ())),
        ways=whole_questions("ways").get(raw["id"], ()),
        direct=whole_questions("direct").get(raw["id"], ()),
        often=raw.get("often", 1),
    )


@cache
def whole_questions(folder: str) -> dict[str, tuple[str, ...]]:
    """The patterns of each fact in a folder of the text, one a line: they are trained on, all of them."""
    paths = sorted((TEXT / folder).glob("*.toml"))
    read = (tomllib.loads(path.read_text(encoding="utf-8")) for path in paths)
    return {id: tuple(text.strip().split("\n")) for facts in read for id, text in facts.items()}


@cache
def all_facts() -> tuple[Fact, ...]:
    """All facts of all subjects, in the order of the files."""
    found = []
    for path in sorted((TEXT / "facts").glob("*.toml")):
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        found += [_read(path.stem, fact) for fact in raw["fact"]]
    return tuple(found)


def any_fact(rng: Random) -> Fact:
    return rng.choices(all_facts(), _often())[0]


@cache
def _often() -> tuple[int, ...]:
    return tuple(fact.often for fact in all_facts())


@cache
def known_names() -> frozenset[str]:
    """All subjects of facts, in lower case; they must not be treated as unknown."""
    return frozenset(x.lower() for fact in all_facts() for _, x in fact.slots)


def asked_about(bank: str, things: Collection[str]) -> Fact | None:
    """The first fact that answers this bank's questions about one of the things, in lower case."""
    slots = {(bank, thing) for thing in things}
    return next((fact for fact in all_facts() if slots & {(name, x.lower()) for name, x in fact.slots}), None)
