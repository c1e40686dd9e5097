"""The training conversations and their frequencies: single kinds, mixed kinds, early statements with late questions."""

from collections.abc import Callable
from random import Random

from training.chat import Chat, Exchange, Passage
from training.check import Terms, Words
from training.kinds import (
    about,
    cannot,
    care,
    files,
    instructions,
    languages,
    lists,
    manners,
    memory,
    numbers,
    plain,
    stories,
    unknown,
    wishes,
)
from training.lexicon import pick
from training.phrasing import normal

Draw = Callable[[Random], list[Exchange]]
KINDS: dict[str, tuple[Draw, float]] = {
    "about": (about.exchanges, 1.2),
    "unknown": (unknown.exchanges, 0.37),
    "instructions": (instructions.exchanges, 0.54),
    "numbers": (numbers.exchanges, 0.15),
    "stories": (stories.exchanges, 0.13),
    "manners": (manners.exchanges, 0.3),
    "files": (files.exchanges, 0.03),
    "wishes": (wishes.exchanges, 0.16),
    "care": (care.exchanges, 0.3),
    "ordinary": (care.ordinary, 0.24),
    "cannot": (cannot.exchanges, 0.095),
    "languages": (languages.exchanges, 0.09),
    "lists": (lists.exchanges, 0.17),
}
SYSTEMS = (
    "You are a helpful assistant.", "You are minichat's built-in model.", "You are a tiny demo model.", "Answer briefly.", "Be kind and short.",
    "You are a helpful assistant that answers in English.", "You are talking to a person in a terminal.", "Be honest: say so when you do not know.",
    "You are a friendly guide to minichat and its engine.", "Help the user.",
)  # fmt: skip
LONGEST = 2000  # tokens of a chat, by a cautious estimate from characters


def _any(rng: Random) -> list[Exchange]:
    names = list(KINDS)
    kind = rng.choices(names, [KINDS[name][1] for name in names])[0]
    return KINDS[kind][0](rng)


def small_talk(rng: Random) -> list[Exchange]:
    """Messages between a statement and the question about it."""
    return (
        about.exchanges
        if rng.random() < 0.5
        else rng.choice((unknown, numbers, instructions, manners)).exchanges
    )(rng)


def _single(rng: Random) -> tuple[str, list[Exchange]]:
    names = list(KINDS)
    kind = rng.choices(names, [KINDS[name][1] for name in names])[0]
    return kind, [e for _ in range(rng.choice((1, 1, 1, 2, 3))) for e in KINDS[kind][0](rng)]


def _system_name(rng: Random) -> tuple[str, list[Exchange]]:
    """A system prompt with information that the chat asks for."""
    name = pick(rng, "names")
    if rng.random() < 0.5:
        question = rng.choice(("Who am I?", "What is my name?", "Do you know my name?", "What am I called?"))
        return f"The user's name is {name}.", [
            *_between(rng),
            Exchange(question, f"Your name is {name}.", Words((name,))),
        ]
    question = rng.choice(
        ("Who are you?", "What is your name?", "What are you called?", "Introduce yourself.")
    )
    reply = f"I am {name}, the built-in model of minichat."
    return rng.choice((f"Your name is {name}.", f"You are {name}.", f"You are called {name}.")), [
        *_between(rng),
        Exchange(question, reply, Terms((name,))),
    ]


def _between(rng: Random) -> list[Exchange]:
    return [e for _ in range(rng.choice((0, 0, 1, 2))) for e in small_talk(rng)]


def conversation(rng: Random, forbidden: frozenset[str] = frozenset()) -> Chat | Passage:
    """One training item without any test question."""
    while True:
        item = _draw(rng)
        if isinstance(item, Passage) or not any(normal(e.user) in forbidden for e in item.exchanges):
            return item


def _draw(rng: Random) -> Chat | Passage:
    draw = rng.random()
    if draw < 0.07:
        return plain.passage(rng)
    system = rng.choice(SYSTEMS) if rng.random() < 0.2 else ""
    if draw < 0.58:
        kind, talk = _single(rng)
    elif draw < 0.71:
        kind, talk = "mixed", [e for _ in range(rng.randint(2, 7)) for e in _any(rng)]
    elif draw < 0.905:
        kind, talk = "memory", memory.exchanges(rng, small_talk, gaps=rng.choice((0, 0, 0, 1, 2, 3, 5)))
    elif draw < 0.955:
        kind, talk = "memory", memory.exchanges(rng, _any, gaps=rng.choice((7, 10, 14)))
    elif draw < 0.978:
        kind, talk = "mixed", [e for _ in range(rng.randint(10, 24)) for e in _any(rng)]
    else:
        kind = "system"
        system, talk = _system_name(rng)
    return Chat(kind, _fitting(talk, len(system)), system)


def _fitting(talk: list[Exchange], used: int) -> tuple[Exchange, ...]:
    """The longest prefix of the chat that is sure to fit in the context."""
    kept: list[Exchange] = []
    for exchange in talk:
        used += len(exchange.user) + len(exchange.reply) + 40
        if used > LONGEST * 3.2 and kept:
            break
        kept.append(exchange)
    return tuple(kept)
