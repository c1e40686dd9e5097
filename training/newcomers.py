"""Independent tests, which must not be in the training text: first questions of new users (text/newcomers.toml) and one
question for each fact (text/asked.toml)."""

import re
import tomllib
from dataclasses import dataclass
from functools import cache

from training.chat import Exchange
from training.check import Terms
from training.facts import all_facts
from training.lexicon import TEXT

_ITEM = re.compile(r"\s*(?:[-*]|\d+[.)])\s+")


@dataclass(frozen=True, slots=True)
class Answer:
    """The criteria for a right answer; all given ones must hold (text/newcomers.toml explains them)."""

    must: tuple[str, ...]
    never: tuple[str, ...] = ()
    exact: str = ""
    items: int = 0
    times: tuple[tuple[str, int], ...] = ()

    def right(self, reply: str) -> bool:
        low, found = reply.lower(), items_of(reply)
        return (
            Terms(self.must).right(reply)
            and not any(word.lower() in low for word in self.never)
            and self.exact in ("", reply.strip())
            and self.items in (0, len(found) if len(set(found)) == len(found) else -1)
            and all(len(re.findall(rf"\b{word}\b", low)) == count for word, count in self.times)
        )


def items_of(reply: str) -> list[str]:
    """The items of a list, by lines or commas, without punctuation and numbers."""
    parts = [line for line in reply.splitlines() if line.strip()]
    if len(parts) == 1:
        parts = re.split(r",|\band\b", reply.strip(" ."))
    return [_ITEM.sub("", part).strip() for part in parts]


@cache
def newcomers() -> tuple[tuple[str, Exchange], ...]:
    """Each question with its subject. There is no reference reply, because several would be right."""
    raw = tomllib.loads((TEXT / "newcomers.toml").read_text(encoding="utf-8"))
    return tuple(
        (about, Exchange(each["ask"], "", _answer(each))) for about, asks in raw.items() for each in asks
    )


@cache
def for_each_fact() -> tuple[Exchange, ...]:
    """One question for each fact, in the order of the facts."""
    raw = tomllib.loads((TEXT / "asked.toml").read_text(encoding="utf-8"))
    return tuple(Exchange(raw[fact.room][fact.id], fact.say[0], fact.check) for fact in all_facts())


def _answer(each: dict) -> Answer:
    return Answer(
        must=tuple(each.get("must", ())),
        never=tuple(each.get("never", ())),
        exact=each.get("exact", ""),
        items=each.get("items", 0),
        times=tuple(each.get("times", {}).items()),
    )
