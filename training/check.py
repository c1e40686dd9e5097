"""Checks of replies: one small frozen checker for each kind of right answer."""

import json
import re
from dataclasses import dataclass
from typing import Any, Protocol


class Check(Protocol):
    """Decides whether a reply is right, from the reply alone."""

    def right(self, reply: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Terms:
    """Every term must occur; a term may offer alternatives with a bar: `16|sixteen`."""

    terms: tuple[str, ...]

    def right(self, reply: str) -> bool:
        low = reply.lower()
        return all(any(word.lower() in low for word in term.split("|")) for term in self.terms)


@dataclass(frozen=True, slots=True)
class Words:
    """Like Terms, but whole words only: `3` does not match in `13`."""

    words: tuple[str, ...]

    def right(self, reply: str) -> bool:
        return all(
            any(re.search(rf"(?<!\w){re.escape(w)}(?!\w)", reply, re.IGNORECASE) for w in word.split("|"))
            for word in self.words
        )


@dataclass(frozen=True, slots=True)
class Exact:
    """The reply is this text, apart from outer white space."""

    text: str

    def right(self, reply: str) -> bool:
        return reply.strip() == self.text.strip()


@dataclass(frozen=True, slots=True)
class JsonIs:
    """The reply, with or without a code fence, parses to this value."""

    value: Any

    def right(self, reply: str) -> bool:
        parsed = parse_json(reply)
        return parsed is not None and parsed == self.value


def parse_json(reply: str) -> Any:
    """The JSON value in a reply, or None if it does not parse."""
    text = reply.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of exactly this many different things, all of which are `known`."""

    count: int
    known: tuple[str, ...]

    def right(self, reply: str) -> bool:
        found = [re.sub(r"^\s*(?:[-*]|\d+[.)])\s+", "", line).strip() for line in reply.strip().splitlines()]
        return len(found) == len(set(found)) == self.count and set(found) <= set(self.known)


@dataclass(frozen=True, slots=True)
class Honest:
    """The reply says that the model does not know, and that it is a demo model."""

    def right(self, reply: str) -> bool:
        low = reply.lower()
        return "tiny demo model" in low and any(phrase in low for phrase in ("don't know", "can't"))


@dataclass(frozen=True, slots=True)
class StoryOf:
    """The story ends, mentions its subject and, at least twice, its hero's name, and has no other name."""

    name: str
    subject: str
    names: frozenset[str]

    def right(self, reply: str) -> bool:
        text = reply.strip()
        strangers = {w for w in re.findall(r"\b[A-Z][a-z]+\b", text) if w in self.names and w != self.name}
        return (
            text.endswith((".", "!", '."', '!"'))
            and len(re.findall(rf"\b{re.escape(self.name)}\b", text)) >= 2
            and self.subject.lower() in text.lower()
            and not strangers
        )
