"""Lists of a requested length, up to 30, and counting, both memorized. Free lists are in text/lists.toml, complete ones and series in
text/counting.toml."""

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from random import Random

from training.chat import Exchange
from training.check import Check, Exact, Honest, ListOf, Terms, Words
from training.kinds.numbers import spell
from training.kinds.unknown import KNOW
from training.lexicon import TEXT, is_held_out
from training.phrasing import any_of, made_up, roughly

LONGEST = 30
TOO_LONG = f"That is too long for me: I list up to {LONGEST} things. Ask me for fewer."
TOO_FAR = f"That is too long for me: I count up to {LONGEST} numbers. Ask me for fewer, or say *count to 100 by tens*."
ASKS = {
    False: (
        "[For my|For our|For tonight's] [quiz|party game|lesson|spelling test] [I need|we need|it takes] {n} [different |]{c}[.|, please.|]",
        "[Lend|Give] my [memory|brain|son|class] a hand with {n} {c}[.|, please.|]",
        "[Off the top of your head|Without thinking|Quick|In a minute], {n} [different |]{c}[.|!|, please.|]",
        "[In a hurry|No explanations|No comment], [just|only|nothing but] {n} {c}[.|!|]",
        "[If you had to name|Should you pick|Were you to list] {n} {c}, [which would they be|what would you say|which ones]?",
        "[Left column|Top row|Front page]: {n} {c}[, one below the other.|.|]",
        "[Sticky note|Shopping list|To-do|Blackboard]: {n} {c}[.|]",
        "[I collect|I am collecting|We collect|I gather] {c}[. Name|. I still need|; find me|; add] {n}[.|, please.|]",
        "[Feed|Supply|Provide|Furnish] me with {n} [different |]{c}[.|, please.|]",
        "[I got nowhere|My page is empty|I can think of none], [so name|so give me|please tell me|help me to] {n} {c}[.|]",
        "List {n} {c}.", "Name {n} {c}.", "Give me {n} {c}.", "{n} {c}", "{n} {c}, please.", "Tell me {n} {c}.", "Write {n} {c}.", "Write down {n} {c}.", "I need {n} {c}.", "I want {n} {c}.", "Can you list {n} {c}?", "Can you name {n} {c}?", "Could you give me {n} {c}?",
        "A list of {n} {c}.", "Make a list of {n} {c}.", "Show me {n} {c}.", "What are {n} {c}?", "Think of {n} {c}.", "Do you know {n} {c}?", "Please list {n} {c}.", "Say {n} {c}.", "Let me have {n} {c}.", "Type {n} {c}.", "Print {n} {c}.", "Suggest {n} {c}.",
        "Would {n} {c} be too much to ask?", "[Would|Will] {n} [different |]{c} be [too much to ask|too many|too much|asking too much|possible|all right]?", "Are {n} {c} too much to ask?", "Would [it be too much to ask for|it be possible to have|I be asking too much with|it bother you to give me|you mind giving me] {n} [different |]{c}?",
        "[Is it|Would it be] [too much|a lot|all right|fine|ok] to ask [for|you for] {n} [different |]{c}?", "[I hope|May I hope|Dare I hope] for {n} {c}[.|, please.|]", "[Would you allow me|Do I get|May I ask for|Might I have] {n} {c}?",
        "Come up with {n} {c}.", "Find {n} {c}.", "Which {n} {c} do you know?", "Now {n} {c}.", "Give a list with {n} {c}.", "Tell me the names of {n} {c}.", "Could you list {n} {c} for me?", "list {n} {c} for me", "Give me a list of {n} {c}.", "Write a list of {n} {c}.",
        "I would like {n} {c}.", "{c}: {n} of them", "{n} different {c}", "Enumerate {n} {c}.", "Can I have {n} {c}?", "just {n} {c}", "name me {n} {c}", "Any {n} {c}.", "Pick {n} {c}.", "Choose {n} {c}.", "make it {n} {c}", "Tell me about {n} {c}, just the names.",
        "[List|Name|Mention|Write|Write down|Note|Note down|Type|Print|Give me|Tell me|Show me|Say|Find|Pick|Choose|Recommend|Suggest|Think of|Come up with|Put down|Jot down|Enumerate|Call out|Quote] {n} [different |]{c}[ for me| please| here|, please|.|.|.|]",
        "[Put|Write|Type|Collect|Gather|Arrange|Place] {n} [different |]{c} [in|into|on] a [list|numbered list|short list].", "[What|Which] {n} {c} [come to your mind|come to mind|can you think of|would you name|can you name|do you know|are there|can you list|occur to you|would you put on a list]?",
        "[Can|Could] you [think of|come up with|write down|tell me|name|put down|give me|mention|list|show me] {n} [different |]{c}[ for me| please|]?", "[I need|I want|I would like|I'd like|I am looking for|Please give me|Please write|Let us have|Get me] [a list of |a list with |]{n} [different |]{c}[.|.|]",
        "[My|Our|The] list needs {n} {c}.", "Fill a page with {n} {c}.", "[Fill|Cover|Complete] [a page|the page|a sheet|my list|the screen|a line] with [the names of |]{n} {c}[.|, please.|]", "{n} [examples of|kinds of|sorts of|names of] {c}[, please|.|]",
        "Let me [see|read|look at|view|have a look at] {n} [different |]{c}[ on the screen| on my screen| here| in a column| one below the other|][.|, please.|]", "[I want to see|I'd like to see|Show|Display|Put up|Bring up] {n} [different |]{c} on [the|my] [screen|display][.|, please.|]",
        "[On the screen|On the page|In the chat], [show|write|put|list] {n} [different |]{c}[.|, please.|]", "[Fetch|Hand|Serve|Deliver|Produce|Supply] [me |]{n} {c}[.|, please.|]", "[My teacher|My son|The form|The exercise|A friend] [wants|asks for|needs] {n} {c}[. Help me out.|. Which ones?|, so list them.|.]",
        "[We play a game|It is a quiz]: [name|list|say] {n} [different |]{c}[.|!|]", "[Exactly|Only|Just|No more than] {n} {c}[, please|, one a line|.|]", "{n} {c}, [one per line|as a list|numbered|in a row|that is all I need][.|]", "[Help me|Help us] [find|name|collect] {n} {c}[.|, please.|]",
        "I could use {n} {c}.",
        "[I|We|My story|My game|The class] could use {n} [different |]{c}[.|, please.| right now.|]",
        "[Could|Can|Would] you spare {n} [different |]{c} for my [notebook|diary|list|poster|homework|wall]?",
        "[Could|Can|Would] you [lend|spare|hand|dictate] me {n} {c}[ for my notebook| for my homework|]?",
        "Have you got {n} {c} for me?",
        "[Have you got|Have you|Do you have|Got] {n} [different |]{c} [for me|for us|in store|for my list|up your sleeve]?",
        "[In my notebook|On my poster|In my crossword|In my game] [I need|there is room for|there should be] {n} {c}[.|, which ones?|, go ahead.]",
        "[I bet|I doubt|I wonder if|Let us see whether] you [know|can name|can list] {n} [different |]{c}[.|]",
        "[Reel off|Rattle off|Run through|Go through|Count off] {n} [different |]{c}[.|, please.|]",
        "[Dictate|Teach] me {n} {c}[.|, one by one.|]",
    ),
    True: ("Would you write me {n} {c}?", "My scrapbook lacks {n} {c}.", "Donate {n} {c} to my collection.", "Treat me to {n} {c}."),
}  # fmt: skip
SOME = ("some", "a few", "some", "several")
STRANGE = (
    "presidents", "programming languages", "books", "films", "songs", "singers", "inventors", "wars", "companies", "car brands", "phones", "stocks", "websites", "jokes", "poems", "recipes", "actors", "kings", "queens", "painters", "philosophers", "elements",
    "movies", "bands", "novels", "moons", "operating systems", "algorithms", "facts about France", "countries in Asia", "countries in Africa", "cities in France", "cities in Italy", "cities in America", "cities in Japan", "towns in Poland", "rivers in Germany", "rivers in England", "rivers in Asia", "mountains in Spain", "mountains in Austria", "lakes in Finland", "lakes in Canada", "reasons for the war", "rivers in Africa", "capitals of Europe", "diseases", "medicines", "scientists", "football clubs", "restaurants in Rome", "video games", "tv shows", "anagrams",
    "lakes", "islands", "volcanoes", "gods", "planets with rings", "synonyms of big", "rhymes on house", "famous people", "laws", "currencies", "chemicals", "quotes", "prime ministers", "poets",
    "sonnets", "essays", "riddles", "proverbs", "plays", "operas", "paintings", "statues", "museums", "castles", "bridges", "towers", "battles", "treaties", "emperors", "saints", "popes", "generals", "explorers", "astronauts", "theorems", "formulas", "equations", "particles", "galaxies", "comets", "constellations", "satellites",
    "viruses", "vitamins", "allergies", "remedies", "lawyers", "politicians", "parties", "newspapers", "magazines", "channels", "podcasts", "influencers", "hashtags", "passwords", "shortcuts in Word", "pages on the web", "shops near me", "hotels in Paris", "flights to Rome", "trains to Berlin", "slang words", "idioms", "adverbs", "verbs in French",
    "words in Latin", "synonyms of happy", "rhymes on moon", "anthems", "flags", "dynasties", "myths", "legends", "heroes of Greece", "titans", "nymphs", "dances", "chords", "symphonies", "composers", "conductors", "drummers", "rappers", "comedians", "directors",
)  # fmt: skip
WORDS = ("Count to {b} in words.", "Count in words to {b}.", "Write the numbers to {b} in words.", "Count from {a} to {b} in words.", "Count to {b} with words.", "the numbers {a} to {b} as words", "Spell the numbers from {a} to {b}.")  # fmt: skip

Made = tuple[str, str, Check]


@dataclass(frozen=True, slots=True)
class Free:
    """A kind of things: the first so many are a list of it. `one` is its singular with and without the article."""

    names: tuple[str, ...]
    items: tuple[str, ...]
    one: tuple[str, str]
    loose: bool


@dataclass(frozen=True, slots=True)
class Known:
    """A list that is complete. `many` is its noun and the rest of a question for their number."""

    names: tuple[str, ...]
    items: tuple[str, ...]
    ordered: bool
    many: tuple[str, str] | None


def _split(items: str) -> tuple[str, ...]:
    return tuple(items.split("|" if "|" in items else None))


@cache
def _lists() -> dict[str, Free]:
    raw = tomllib.loads((TEXT / "lists.toml").read_text(encoding="utf-8"))
    return {
        kind: Free(tuple(x["names"]), _split(x["items"]), (x["one"][0], x["one"][1]), x.get("loose", False))
        for kind, x in raw.items()
    }


@cache
def known_lists() -> tuple[Known, ...]:
    known = tomllib.loads((TEXT / "counting.toml").read_text(encoding="utf-8"))["known"]
    return tuple(
        Known(
            tuple(x["names"]),
            _split(x["items"]),
            x.get("ordered", False),
            (x["many"][0], x["many"][1]) if "many" in x else None,
        )
        for x in known.values()
    )


@cache
def banks() -> dict[str, dict[bool, tuple[str, ...]]]:
    """The phrasings in text/counting.toml; the held-out ones under True."""
    asks = tomllib.loads((TEXT / "counting.toml").read_text(encoding="utf-8"))["asks"]
    return {name: {False: tuple(x["train"]), True: tuple(x["test"])} for name, x in asks.items()}


def kinds_of_lists() -> dict[str, tuple[str, ...]]:
    return {kind: free.items for kind, free in _lists().items()}


def _way(rng: Random, patterns: tuple[str, ...]) -> str:
    """A phrasing, often a short one: those without options, which most users type."""
    short = tuple(pattern for pattern in patterns if "[" not in pattern)
    return any_of(rng, short if short and rng.random() < 0.4 else patterns)


def _number(rng: Random, n: int) -> str:
    return spell(n) if rng.random() < 0.4 else str(n)


def _size(rng: Random) -> int:
    draw = rng.random()
    if draw < 0.5:
        return rng.randint(1, 10)
    return rng.choice((LONGEST, rng.randint(25, LONGEST))) if draw > 0.82 else rng.randint(2, LONGEST)


def _list(rng: Random, held_out: bool) -> Made:
    """Items of one kind, numbered, which also helps the model to stop at the right one."""
    while True:
        kind, n = rng.choice(tuple(_lists())), _size(rng)
        if is_held_out(f"{n} {kind}") == held_out:
            break
    free = _lists()[kind]
    reply = _numbered(free.items[:n])
    name = rng.choice(free.names)
    if n == 5 and not held_out and rng.random() < 0.5:
        ask = _way(rng, ASKS[False])
        return ask.format(n=rng.choice(SOME), c=name), reply, ListOf(n, free.items)
    ask = _way(rng, ASKS[held_out])
    return ask.format(n=_number(rng, n), c=name), reply, ListOf(n, free.items)


def _numbered(items: tuple[str, ...]) -> str:
    return "\n".join(f"{i}. {item}" for i, item in enumerate(items, 1)) if len(items) > 1 else items[0]


def _loose(rng: Random, held_out: bool) -> Made:
    """One thing, or a list without a length, which has five."""
    free = rng.choice([each for each in _lists().values() if each.loose])
    if rng.random() < 0.5:
        ask = _way(rng, banks()["unnumbered"][held_out])
        return ask.format(c=rng.choice(free.names)), _numbered(free.items[:5]), ListOf(5, free.items)
    free = rng.choice(tuple(_lists().values()))
    ask = _way(rng, banks()["one"][held_out])
    return ask.format(o=free.one[0], i=free.one[1]), free.items[0], ListOf(1, free.items)


def _strange_list(rng: Random, held_out: bool) -> Made:
    """A list of an unknown kind, or one that is too long."""
    ask = _way(rng, ASKS[held_out])
    if rng.random() < 0.3:
        n = rng.choice((rng.randint(LONGEST + 1, 120), 50, 100, 1000))
        name = rng.choice(rng.choice(tuple(_lists().values())).names)
        return (
            ask.format(n=_number(rng, n) if n < 100 else str(n), c=name),
            TOO_LONG,
            Terms((f"up to {LONGEST}",)),
        )
    kind = rng.choice([each for each in STRANGE if is_held_out(each) == held_out])
    if not held_out and rng.random() < 0.2:
        kind = made_up(rng) + "s"
    return ask.format(n=_number(rng, rng.randint(2, 12)), c=kind), KNOW, Honest()


def _sequence(rng: Random, held_out: bool) -> Made:
    """All of a complete list, also backwards."""
    usual = tuple(known for known in known_lists() if known.many)
    known = rng.choice(usual if rng.random() < 0.3 else known_lists())
    if known.ordered and rng.random() < 0.3:
        ask, items = _way(rng, banks()["backwards"][held_out]), known.items[::-1]
    else:
        ask, items = _way(rng, banks()["known"][held_out]), known.items
    return _said(ask.format(x=rng.choice((known.names[0], *known.names))), items)


def _said(asked: str, items: Iterable[str | int]) -> Made:
    reply = ", ".join(map(str, items))
    return asked, reply, Exact(reply)


def _part(rng: Random, held_out: bool) -> Made:
    """A part of a complete list: its first or last items, those between two, or as many as asked; or their number."""
    if rng.random() < 0.25:
        return _how_many(rng, held_out)
    known = rng.choice([each for each in known_lists() if each.ordered or each.many])
    size, draw = len(known.items), rng.random()
    if not known.ordered or draw < 0.3:  # "three planets", "ten planets"
        n = rng.randint(1, size + 4) if rng.random() < 0.9 else rng.choice((15, 20, 30, 50, 100))
        asked = _way(rng, ASKS[held_out]).format(n=_number(rng, n), c=known.names[0])
        if n >= size:
            reply = f"There are only {size}: {', '.join(known.items)}" if n > size else ", ".join(known.items)
            return asked, reply, Exact(reply)
        return asked, _numbered(known.items[:n]), ListOf(n, known.items)
    name = rng.choice(known.names[:2])
    if draw < 0.55:
        known = rng.choice([each for each in known_lists() if each.names[0] in SPANS])
        first, last = sorted(rng.sample(range(len(known.items)), 2))
        ask = _way(rng, banks()["between"][held_out])
        asked = ask.format(x=rng.choice(known.names[:2]), p=known.items[first], q=known.items[last])
        return _said(asked, known.items[first : last + 1])
    n = rng.randint(2, size - 1)
    way = "first" if draw < 0.8 else "last"
    asked = _way(rng, banks()[way][held_out]).format(n=_number(rng, n), x=name)
    return _said(asked, known.items[:n] if way == "first" else known.items[-n:])


SPANS = ("days of the week", "months", "letters of the alphabet", "planets")  # from one item to another


def _how_many(rng: Random, held_out: bool) -> Made:
    size, (noun, rest) = rng.choice([(len(each.items), each.many) for each in known_lists() if each.many])
    reply = f"There are {size} {noun}{rest}."
    return _way(rng, banks()["many"][held_out]).format(x=noun, i=rest), reply, Words((str(size),))


def _count(rng: Random, held_out: bool) -> Made:
    """Counting up or down, in digits or in words, usually from one."""
    a, b = (
        1,
        rng.choice((5, 10, 10, 12, 15, 20, 20, 25, 30)) if rng.random() < 0.4 else rng.randint(3, LONGEST),
    )
    draw = rng.random()
    if draw < 0.25:
        a = rng.randint(0, b - 2)
    elif draw < 0.45:
        a = rng.choice((rng.randint(5, 120), 10 * rng.randint(2, 19)))
        b = a + rng.choice((rng.randint(3, 12), 10, rng.randint(3, LONGEST - 1)))
    numbers = list(range(a, b + 1))
    if b <= LONGEST and rng.random() < 0.1 and not held_out:
        reply = ", ".join(spell(n) for n in numbers)
        return _filled(rng, rng.choice(_with_start(WORDS, a != 1)), a, b), reply, Exact(reply)
    if rng.random() < 0.3:
        way = _way(rng, _with_start(banks()["down"][held_out], a != 1))
        reply = ", ".join(map(str, reversed(numbers)))
    else:
        way = _way(rng, _with_start(banks()["up"][held_out], a != 1))
        reply = ", ".join(map(str, numbers))
    return _filled(rng, way, a, b), reply, Exact(reply)


@cache
def _with_start(patterns: tuple[str, ...], needed: bool) -> tuple[str, ...]:
    """The patterns that say where a count starts, or all of them if it starts at one."""
    return tuple(pattern for pattern in patterns if "{a}" in pattern) if needed else patterns


def _filled(rng: Random, way: str, a: int, b: int) -> str:
    """Both numbers in digits, or both in words."""
    words = rng.random() < 0.35
    return way.format(a=spell(a) if words else a, b=spell(b) if words else b)


FAR = {100: "a hundred", 1000: "a thousand", 10_000: "ten thousand", 100_000: "100,000", 1_000_000: "a million", 10**9: "a billion"}  # fmt: skip


def _far(rng: Random, held_out: bool) -> Made:
    """A count that is too long."""
    b = rng.choice((40, 50, 50, 60, 75, 80, 99, 100, 100, 100, 120, 150, 200, 250, 300, 365, 500, 999, 1000, 1000, *FAR, rng.randint(35, 400)))  # fmt: skip
    shown = (
        FAR[b] if b in FAR and rng.random() < 0.5 else spell(b) if b < 1000 and rng.random() < 0.2 else str(b)
    )
    draw = rng.random()
    if draw < 0.15:
        ask, slots = _way(rng, ASKS[held_out]), {"n": shown, "c": "numbers"}
    elif draw < 0.3 and b >= 80:
        ask, slots = _way(rng, banks()["series"][held_out]), {"e": rng.choice(("even numbers", "odd numbers")), "b": shown}  # fmt: skip
    elif draw < 0.45 and b >= 100:
        ask = _way(rng, banks()["steps"][held_out])
        slots = {**_step(rng, rng.choice([k for k in STEPS if k * 40 <= b])), "b": shown}
    else:
        ask = _way(rng, banks()["down" if draw > 0.85 else "up"][held_out])
        slots = {"a": "1" if rng.random() < 0.8 or b > 10_000 else str(rng.randint(0, b - 34)), "b": shown}
    return ask.format(**slots), TOO_FAR, Terms((f"up to {LONGEST}",))


STEPS = (2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 5, 5, 5, 6, 7, 8, 9, 10, 10, 10, 11, 12, 20, 25, 50, 100)


def _step(rng: Random, k: int) -> dict[str, str]:
    """A step as "twos" or "2s", and as a number."""
    word = "hundred" if k == 100 else spell(k)
    many = f"{word[:-1]}ies" if word.endswith("y") else word + ("es" if word.endswith("x") else "s")
    return {"s": many if rng.random() < 0.6 else f"{k}{rng.choice(('s', 's', 's', chr(39) + 's'))}", "k": str(k) if rng.random() < 0.6 else word}  # fmt: skip


def _steps(rng: Random, held_out: bool) -> Made:
    """Counting by a step, up or down; without an end it has ten numbers."""
    k, draw = rng.choice(STEPS), rng.random()
    slots, most = _step(rng, k), rng.choice((10, 12, 20, LONGEST))
    b = k * rng.randint(3, most) + (rng.randrange(k) if rng.random() < 0.12 else 0)
    if draw < 0.15:
        b = rng.choice([n for n in (10, 12, 15, 20, 24, 30, 40, 50, 60, 100) if 2 <= n / k <= LONGEST] or [b])
    if draw < 0.42:
        return _said(_ask(rng, "steps", held_out, b=b, **slots), range(k, b + 1, k))
    if draw < 0.6:
        a = rng.choice((0, k, 1, rng.randint(0, 20), 10) if k <= 10 else (0, k, k))
        b = a + k * rng.randint(2, most - 1) + (rng.randrange(k) if rng.random() < 0.1 else 0)
        return _said(_ask(rng, "steps_from", held_out, a=a, b=b, **slots), range(a, b + 1, k))
    if draw < 0.78:
        return _said(_ask(rng, "steps_open", held_out, **slots), range(k, 10 * k + 1, k))
    if draw < 0.9:
        return _said(_ask(rng, "steps_down", held_out, b=b, **slots), range(b, 0, -k))
    k = rng.randint(1, 12)
    reply = "\n".join(f"{i} x {k} = {i * k}" for i in range(1, 11))
    return _ask(rng, "table", held_out, k=_number(rng, k)), reply, Exact(reply)


def _ask(rng: Random, bank: str, held_out: bool, **slots: str | int) -> str:
    words = rng.random() < 0.2
    shown = {name: spell(x) if words and isinstance(x, int) else x for name, x in slots.items()}
    return _way(rng, banks()[bank][held_out]).format(**shown)


PRIMES = tuple(n for n in range(2, 114) if all(n % k for k in range(2, n)))
SERIES = (
    (("even numbers", "even numbers", "evens"), tuple(range(2, 61, 2))),
    (("odd numbers", "odd numbers", "odds"), tuple(range(1, 60, 2))),
    (("prime numbers", "primes"), PRIMES),
    (("square numbers", "squares"), tuple(n * n for n in range(1, 21))),
)


def _series(rng: Random, held_out: bool) -> Made:
    """Even, odd, prime or square numbers, numbers in order, or a count whose end is left open."""
    draw = rng.random()
    if draw < 0.25:
        n = rng.randint(2, LONGEST)
        bank = ASKS if rng.random() < 0.4 else banks()["numbers"]
        asked = _way(rng, bank[held_out]).format(n=_number(rng, n), b=n, c="numbers")
        return _said(asked, range(1, n + 1))
    if draw < 0.31:
        return _said(_ask(rng, "open", held_out), range(1, 11))
    if draw < 0.38:
        a = rng.randint(2, rng.choice((20, 100)))
        return _said(_ask(rng, "open_from", held_out, a=_number(rng, a)), range(a, a + 10))
    if draw < 0.46:
        b = rng.choice(("8", "10", "10", "ten", "20", "50", "99", "100", "100", "1000"))
        return _ask(rng, "pick", held_out, b=b), "7", Exact("7")
    names, series = rng.choice((*SERIES[:2], *SERIES))
    if draw < 0.7:
        n = rng.randint(2, rng.choice((10, 10, len(series))))
        return _said(_ask(rng, "series_first", held_out, n=_number(rng, n), e=rng.choice(names)), series[:n])
    b = rng.choice((10, 12, 15, 20, 20, 25, 30, 40, 50, rng.randint(6, series[-1])))
    asked = _ask(rng, "series", held_out, b=_number(rng, b), e=rng.choice(names))
    return _said(asked, [n for n in series if n <= b])


SHAPES: tuple[tuple[Callable[[Random, bool], Made], float], ...] = (
    (_list, 0.28),
    (_loose, 0.08),
    (_strange_list, 0.09),
    (_sequence, 0.11),
    (_part, 0.07),
    (_count, 0.16),
    (_far, 0.05),
    (_steps, 0.1),
    (_series, 0.08),
)


def exchanges(rng: Random, held_out: bool = False) -> list[Exchange]:
    """A list or a count. Pairs of a number and a kind are held out, and some phrasings."""
    shape = rng.choices([s for s, _ in SHAPES], [w for _, w in SHAPES])[0]
    asked, reply, check = shape(rng, held_out)
    asked = asked[0].upper() + asked[1:]
    if not held_out:
        asked = roughly(rng, asked, slips=0.03)
    return [Exchange(asked, reply, check)]
