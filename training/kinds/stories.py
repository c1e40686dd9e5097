"""Small stories on a named subject, with questions about them."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random

from training.chat import Exchange
from training.check import Check, StoryOf, Words
from training.lexicon import TEXT, every_word, pick
from training.phrasing import made_up, roughly

PLACES = (
    "in the forest", "by the sea", "near the river", "in the old town", "on a hill", "in a quiet valley", "at the edge of the village",
    "behind the mill", "on a small island", "in the mountains", "under the old oak", "in a garden", "by the lake", "in the north",
)  # fmt: skip
TRAITS = (
    "little",
    "clever",
    "curious",
    "kind",
    "shy",
    "brave",
    "cheerful",
    "quiet",
    "young",
    "old",
    "lazy",
    "careful",
    "hungry",
    "proud",
)
HELPERS = (
    "an old owl", "a friendly mouse", "the baker", "a small bird", "the old gardener", "a wise turtle", "a young goat", "the miller",
    "a tired traveler", "the neighbor", "a grey cat", "a little girl", "the fisherman", "a white horse", "a hedgehog", "the postman",
)  # fmt: skip
VERBS = (
    "swim",
    "sing",
    "dance",
    "whistle",
    "fly a kite",
    "ride a bicycle",
    "juggle",
    "skate",
    "bake bread",
    "climb trees",
    "play the flute",
    "read",
)
SEEN = ("goat", "waiter")  # held-out heroes whose wrong stories were read: no longer tests
TRADES = (
    "er",
    "er",
    "man",
    "maker",
    "smith",
    "keeper",
    "ist",
    "or",
    "ess",
    "ling",
    "fish",
    "bird",
)  # ends of invented heroes
ASK_HEADS = (
    "Tell me {st}", "Write {st}", "Write me {st}", "Can you tell {st}", "Can you tell me {st}", "Could you tell {st}", "Please tell me {st}", "Make up {st}",
    "I want {st}", "I want to hear {st}", "I would like {st}", "I would love {st}", "I'd like to hear {st}", "Give me {st}", "Read me {st}", "Please write {st}",
    "Could you write {st}", "Now {st}", "How about {st}", "What about {st}", "Do you know {st}", "Invent {st}", "Think of {st}", "Create {st}", "Show me {st}",
    "Next, {st}", "Let me hear {st}", "Will you tell {st}", "Would you write {st}", "I need {st}", "Time for {st}", "Do you have {st}", "Let us have {st}",
)  # fmt: skip
ASK_TALES = (
    "a story",
    "a short story",
    "a tale",
    "a little story",
    "a small story",
    "a bedtime story",
    "a fairy tale",
    "a nice story",
    "a new story",
    "a little tale",
)
ASK_LINKS = ("about", "about", "about", "with", "of", "on", "featuring")
ASK_HEROES = (
    "{a} named {N}", "{a} called {N}", "{N} the {s}", "{N}, {a}", "{a} with the name {N}", "{a} whose name is {N}", "the {s} {N}", "a {t} {s} named {N}",
    "a {t} {s} called {N}", "{a} by the name of {N}", "{N}, the {s}", "{a} ({N})", "{N} who is {a}", "{a}, name: {N}",
)  # fmt: skip
ASKS = {
    False: (
        "A story about {N}, {a}, please.", "Story: {N} the {s}.", "Tell a story. The hero is {a} and the name is {N}.", "Write about {N}, {a}.",
        "Tell me about a {s} named {N}, as a story.", "Once upon a time there was {a} named {N}. Go on!", "Read me a story about {N}. {N} is {a}.",
        "Invent a story in which {a} called {N} is the hero.", "Story time! {N} is {a}.", "The hero is {N}, {a}. Tell the story.", "{N} is {a}. Tell me the story.",
        "Could I get a story that has {a} named {N} in it?", "Entertain me with a story on {N}, who is {a}.", "Let's hear the story of {a} that is called {N}.",
        "Come up with a tale where the main character is {a}, {N}.", "Tell a story where {N} is {a}.", "Can I have a story? {N}, {a}.", "A tale: {a}, {N}.",
        "I'd like a story that has {N} in it. {N} is {a}.", "Let the hero be {a} called {N}. Tell a story.", "Use {a} and the name {N} for a story.",
        "Please think up an adventure for {N}, {a}.", "May I have a story where {a} named {N} plays the main part?", "Could a tale about {a} called {N} be told?",
        "Put {a} with the name of {N} into a story.", "An adventure of {N} the {s}, please.", "Tell me the adventures of {N}, {a}.", "What adventure did {N} the {s} have?",
        "Main character: {a}. Name: {N}. Write the story.", "Write a tale that begins with {a} named {N}.", "My story is about {a}. Call it {N}.", "A {s} named {N}: tell the story.", "{N} the {s}, a story.",
        "Tell me a story in which {a} named {N} has an adventure.", "I have {a} named {N}. Write a story about it.",
    ),
    True: (
        "I feel like hearing a story: {N}, {a}.", "Would you make {N} the hero of a story? {N} is {a}.", "Is there a story about {a} who is called {N}?",
        "A new tale for me, with {a} named {N}, please.",
    ),
}  # fmt: skip
SUBJECT_ONLY = (
    "Tell me a story about {a}.",
    "A story about {a}, please.",
    "Write a story about {a}.",
    "Can you tell me a story about {a}?",
    "Story about {a}?",
)
NAME_ONLY = (
    "Tell me a story about {N}.",
    "Write a story about {N}.",
    "A story about {N}!",
    "Can you write a story with {N} in it?",
)
OPEN = ("Tell me a story.", "Tell me a short story.", "Write a story.", "A story, please.", "Can you tell a story?", "I am bored, tell me a story.", "Another story!", "Once upon a time")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cast:
    """The hero and the subject of a story."""

    name: str
    subject: str
    place: str
    helper: str
    object: str
    food: str
    verb: str
    trait: str
    female: bool

    def slots(self) -> dict[str, str]:
        he, him, his = ("she", "her", "her") if self.female else ("he", "him", "his")
        return {
            "N": self.name, "s": self.subject, "p": self.place, "h": self.helper, "o": self.object, "f": self.food, "v": self.verb,
            "t": self.trait, "he": he, "him": him, "his": his, "He": he.title(), "His": his.title(),
        }  # fmt: skip


@cache
def _book() -> tuple[list[str], list[str], list[list[list[str]]]]:
    raw = tomllib.loads((TEXT / "stories.toml").read_text(encoding="utf-8"))
    return raw["open"]["lines"], raw["close"]["lines"], [plot["beats"] for plot in raw["plot"]]


def article(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def cast(rng: Random, held_out: bool = False) -> Cast:
    name = (
        pick(rng, "names", held_out)
        if held_out or rng.random() < 0.5
        else made_up(rng, rng.choice((1, 1, 2, 2, 3))).title()
    )
    return Cast(
        name=name,
        subject=_subject(rng, held_out),
        place=rng.choice(PLACES),
        helper=rng.choice(HELPERS),
        object=pick(rng, "objects"),
        food=pick(rng, "foods"),
        verb=rng.choice(VERBS),
        trait=rng.choice(TRAITS),
        female=rng.random() < 0.5,
    )


def _subject(rng: Random, held_out: bool) -> str:
    """What the hero is. In training many are invented or things, so that the word is copied from the request."""
    if held_out:
        found = SEEN[0]
        while found in SEEN:
            found = pick(rng, "animals" if rng.random() < 0.7 else "jobs", rng.random() < 0.5)
        return found
    draw = rng.random()
    if draw < 0.04:
        return rng.choice(SEEN)
    if draw < 0.56:
        return pick(rng, "animals" if rng.random() < 0.7 else "jobs")
    if draw < 0.8:
        return made_up(rng, rng.choice((1, 2, 2, 3)))
    if draw < 0.9:
        return made_up(rng, rng.choice((1, 2))) + rng.choice(TRADES)
    return pick(rng, rng.choice(("objects", "objects", "foods")))


def tell(rng: Random, who: Cast) -> str:
    """A whole story: an opening, the beats of one plot, a close."""
    opens, closes, plots = _book()
    lines = [rng.choice(opens), *(rng.choice(beat) for beat in rng.choice(plots)), rng.choice(closes)]
    slots = who.slots()
    text = " ".join(_capital(_articles(line.format(**slots))) for line in _introduced(lines, who.helper))
    return text.replace('. "', '.\n\n"', 1) if rng.random() < 0.1 else text


def _introduced(lines: list[str], helper: str) -> Iterator[str]:
    """After its first mention, a helper is no longer "an old owl" but "the old owl"."""
    known, told = re.sub(r"^an? ", "the ", helper), False
    for line in lines:
        before, slot, after = line.partition("{h}")
        yield before + (known if told and slot else slot) + after.replace("{h}", known)
        told = told or bool(slot)


def _capital(line: str) -> str:
    return line[0].upper() + line[1:]


def _articles(line: str) -> str:
    """`a owl` becomes `an owl`, after the slots are filled."""
    words = line.split(" ")
    for i in range(len(words) - 1):
        if words[i] in ("a", "A") and words[i + 1][:1] in tuple("aeiou"):
            words[i] += "n"
    return " ".join(words)


def _check(who: Cast) -> StoryOf:
    return StoryOf(
        who.name, who.subject, frozenset(every_word("names")) - {"Will"}
    )  # as in "Will you come again?"


def _request(rng: Random, who: Cast) -> str:
    draw = rng.random()
    patterns = (
        ASKS[False] if draw < 0.25 else SUBJECT_ONLY if draw < 0.78 else NAME_ONLY if draw < 0.88 else OPEN
    )
    pattern = rng.choice(patterns)
    if 0.25 <= draw < 0.68:
        head, tale, link, hero = (rng.choice(part) for part in (ASK_HEADS, ASK_TALES, ASK_LINKS, ASK_HEROES))
        pattern = head.format(st=tale) + f" {link} {hero}" + rng.choice((".", ".", "?", "", "!", ", please."))
    return pattern.format(a=article(who.subject), N=who.name, s=who.subject, t=who.trait)


def _follow_up(rng: Random, who: Cast, story: str) -> Exchange:
    asks: list[tuple[str, str, Check]] = [
        (
            f"What was the name of the {who.subject}?",
            f"The {who.subject} was called {who.name}.",
            Words((who.name,)),
        ),
        (f"Who was {who.name}?", f"{who.name} was {article(who.subject)}.", Words((who.subject,))),
        (f"Where did {who.name} live?", f"{who.name} lived {who.place}.", Words((who.place,))),
    ]
    if who.helper in story:
        asks.append(
            (
                f"Who else was in the story of {who.name}?",
                f"Besides {who.name} there was {who.helper}.",
                Words((who.helper,)),
            )
        )
    question, reply, check = rng.choice(asks)
    return Exchange(roughly(rng, question), reply, check)


def exchanges(rng: Random) -> list[Exchange]:
    who = cast(rng)
    story = tell(rng, who)
    request = _request(rng, who)
    told = [
        Exchange(request if who.name in request else roughly(rng, request, slips=0.05), story, _check(who))
    ]
    while rng.random() < 0.25 and len(told) < 3:
        told.append(_follow_up(rng, who, story))
    return told


def cases(rng: Random, count: int) -> list[Exchange]:
    """Held-out names, half of them in held-out requests."""
    found = []
    for _ in range(count):
        who = cast(rng, held_out=True)
        request = rng.choice(ASKS[rng.random() < 0.5]).format(
            a=article(who.subject), N=who.name, s=who.subject
        )
        found.append(Exchange(request, tell(rng, who), _check(who)))
    return found
