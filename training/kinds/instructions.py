"""Small orders on words and lists, and JSON from a sentence."""

import json
from collections.abc import Callable
from random import Random

from training.chat import Exchange
from training.check import Check, Exact, JsonIs, Words
from training.lexicon import is_held_out, pick
from training.phrasing import made_up

Shape = Callable[[Random, bool], tuple[str, str, Check]]
POOLS = ("foods", "objects", "animals", "colours", "names", "cities", "pet_names", "jobs", "hobbies")


def _word(rng: Random, held_out: bool, most: int = 12) -> str:
    """One lower-case word on the right side of the split."""
    while True:
        word = made_up(rng, rng.choice((1, 2, 2))) if rng.random() < 0.4 else pick(rng, rng.choice(POOLS)).lower()
        if 1 < len(word) <= most and word.isalpha() and is_held_out("word " + word) == held_out:
            return word


def _several(rng: Random, held_out: bool, low: int, high: int) -> list[str]:
    """Different words; the whole list is on the right side of the split."""
    while True:
        size = rng.randint(low, high)
        pool, strange = rng.choice(POOLS), rng.choice((0.0, 0.1, 0.3, 0.8))
        found = [made_up(rng, rng.choice((1, 2, 2, 3))) if rng.random() < strange else pick(rng, pool) for _ in range(size)]
        if len(set(found)) == size and is_held_out(" ".join(found)) == held_out:
            return found


def _comma(items: list[str]) -> str:
    return ", ".join(items)


def _free(rng: Random, key: str, held_out: bool = False) -> str:
    """A word of a list, or one that nobody knows: what is copied need not be understood."""
    return made_up(rng, rng.choice((1, 2, 2, 3))) if not held_out and rng.random() < 0.4 else pick(rng, key, held_out)


def _one(rng: Random, *patterns: str, **slots: object) -> str:
    return rng.choice(patterns).format(**slots)


def _sentence(rng: Random, held_out: bool) -> str:
    while True:
        text = rng.choice((
            "The {animals} has a {colours} {objects}", "{names} likes {foods}", "I saw a {animals} in {cities}", "My {objects} is {colours}",
            "{names} and {names} eat {foods}", "A {jobs} found a {objects}", "We love {hobbies}", "The {objects} is under the {objects}",
            "{names} lives in {cities}", "Every {animals} wants {foods}", "Good {foods} for the {animals}",
        ))  # fmt: skip
        for key in POOLS:
            while "{" + key + "}" in text:
                text = text.replace("{" + key + "}", _free(rng, key), 1)
        if is_held_out(text) == held_out:
            return text


def _repeat(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    text = _sentence(rng, held_out) if rng.random() < 0.6 else " ".join(_several(rng, held_out, 1, 4))
    ask = _one(rng, "Repeat: {t}", "Repeat after me: {t}", "Say: {t}", 'Say "{t}".', 'Repeat "{t}".', "Please repeat: {t}", "Echo: {t}", "Write exactly: {t}", t=text)
    return ask, text, Exact(text)


def _times(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    word, n = _word(rng, held_out), rng.randint(2, 6)
    reply = " ".join([word] * n)
    return _one(rng, "Say {w} {n} times.", "Repeat {w} {n} times.", "Write {w} {n} times.", "{n} times the word {w}, please.", w=word, n=n), reply, Exact(reply)


def _reverse_words(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    items = _several(rng, held_out, 2, 6)
    if rng.random() < 0.5:
        reply = _comma(items[::-1])
        return _one(rng, "Reverse this list: {l}", "Reverse the list {l}.", "Turn this list around: {l}", "Reverse: {l}", "Write this list backwards: {l}", l=_comma(items)), reply, Exact(reply)
    reply = " ".join(items[::-1])
    return _one(rng, "Reverse the words: {l}", "Reverse the order of these words: {l}", "Put these words in reverse order: {l}", "Say these words backwards: {l}", l=" ".join(items)), reply, Exact(reply)


def _spell(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    word = _word(rng, held_out, 10)
    reply = "-".join(word)
    return _one(rng, "Spell {w}.", "Spell the word {w}.", "How do you spell {w}?", "Spell out {w}.", "Spell {w} with dashes.", w=word), reply, Exact(reply)


def _reverse_letters(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    word = _word(rng, held_out, 7)
    reply = f"{'-'.join(word)} backwards is {'-'.join(word[::-1])}: {word[::-1]}"
    return _one(rng, "Reverse the word {w}.", "Write {w} backwards.", "Spell {w} backwards.", "What is {w} backwards?", "Reverse the letters of {w}.", w=word), reply, Exact(reply)


def _count_letters(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    word = _word(rng, held_out, 9)
    reply = f"{'-'.join(word)} has {len(word)} letters."
    return _one(rng, "How many letters are in {w}?", "Count the letters in {w}.", "How many letters has the word {w}?", "How long is the word {w}?", w=word), reply, Words((f"{len(word)} letters",))


def _count_words(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    text = _sentence(rng, held_out) if rng.random() < 0.5 else " ".join(_several(rng, held_out, 2, 8))
    n = len(text.split())
    return _one(rng, "How many words are in: {t}", "Count the words: {t}", 'How many words are in "{t}"?', 'Count the words in "{t}".', t=text), f"There are {n} words.", Words((str(n),))


def _count_items(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    items = _several(rng, held_out, 2, 8)
    return _one(rng, "How many items are in this list: {l}", "Count the items: {l}", "How many things are these: {l}?", "Count this list: {l}", l=_comma(items)), f"There are {len(items)} items.", Words((str(len(items)),))


def _sort_words(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    items = _several(rng, held_out, 2, 5)
    reply = _comma(sorted(items, key=str.lower))
    return _one(rng, "Sort these words: {l}", "Sort alphabetically: {l}", "Sort this list: {l}", "Put these in alphabetical order: {l}", "Sort {l} by the alphabet.", l=_comma(items)), reply, Exact(reply)


def _sort_numbers(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    while True:
        numbers = rng.sample(range(rng.choice((10, 100, 100, 1000))), rng.randint(3, 6))
        if is_held_out(repr(numbers)) == held_out:
            break
    shown = _comma([str(n) for n in numbers])
    down = rng.random() < 0.3
    reply = _comma([str(n) for n in sorted(numbers, reverse=down)])
    asks = ("Sort from large to small: {l}", "Sort these numbers in descending order: {l}", "Sort {l}, largest first.") if down else (
        "Sort: {l}", "Sort these numbers: {l}", "Put these numbers in order: {l}", "Sort from small to large: {l}", "Order these numbers: {l}")  # fmt: skip
    return _one(rng, *asks, l=shown), reply, Exact(reply)


def _case(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    text = _sentence(rng, held_out) if rng.random() < 0.5 else " ".join(_several(rng, held_out, 1, 3))
    if rng.random() < 0.6:
        return _one(rng, "Write in capitals: {t}", "Upper case: {t}", "Make this upper case: {t}", "Put this in capital letters: {t}", "Shout: {t}", t=text), text.upper(), Exact(text.upper())
    text = text.upper() if rng.random() < 0.5 else text
    return _one(rng, "Write in lower case: {t}", "Lower case: {t}", "Make this lower case: {t}", "Put this in small letters: {t}", t=text), text.lower(), Exact(text.lower())


def _place(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    items = _several(rng, held_out, 3, 6)
    at = rng.randrange(min(len(items), 4))
    which, item = (("last", items[-1]) if rng.random() < 0.3 else (("first", "second", "third", "fourth")[at], items[at]))
    return _one(rng, "What is the {w} item of {l}?", "The {w} word in this list: {l}", "Which is the {w} of these: {l}", "Take the {w} one: {l}", w=which, l=_comma(items)), item, Exact(item)


def _bullets(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    items = _several(rng, held_out, 2, 6)
    if rng.random() < 0.5:
        reply = "\n".join(f"- {item}" for item in items)
        return _one(rng, "Make a list of {l}.", "Write as bullet points: {l}", "Bullet list: {l}", "Turn this into a list: {l}", l=_comma(items)), reply, Exact(reply)
    reply = "\n".join(f"{i}. {item}" for i, item in enumerate(items, 1))
    return _one(rng, "Make a numbered list of {l}.", "Number these: {l}", "Numbered list: {l}", "Write a numbered list: {l}", l=_comma(items)), reply, Exact(reply)


def _remove(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    items = _several(rng, held_out, 3, 6)
    gone = rng.choice(items)
    reply = _comma([item for item in items if item != gone])
    return _one(rng, "Remove {x} from this list: {l}", "Take {x} out of {l}.", "Delete {x}: {l}", "The list {l} without {x}?", x=gone, l=_comma(items)), reply, Exact(reply)


def _replace(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    words = _sentence(rng, held_out).split()
    old, new = rng.choice(words), pick(rng, rng.choice(POOLS))
    if words.count(old) > 1:
        return _replace(rng, held_out)
    reply = " ".join(new if w == old else w for w in words)
    return _one(rng, "Replace {a} with {b}: {t}", 'Replace {a} by {b} in "{t}".', "Change {a} to {b}: {t}", a=old, b=new, t=" ".join(words)), reply, Exact(reply)


def _mark(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    text = " ".join(_several(rng, held_out, 1, 3))
    ask, reply = rng.choice((
        ("Write in bold: {t}", "**{t}**"), ("Make this bold: {t}", "**{t}**"), ("Put this in quotes: {t}", '"{t}"'), ("Write as code: {t}", "`{t}`"),
        ("Make this a heading: {t}", "# {t}"), ("Put this in brackets: {t}", "({t})"), ("Write as a code block: {t}", "```\n{t}\n```"),
    ))  # fmt: skip
    return ask.format(t=text), reply.format(t=text), Exact(reply.format(t=text))


CYCLES = (
    ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"),
    tuple("abcdefghijklmnopqrstuvwxyz"),
)


def _cycle(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    """Small enough to be learned by heart, so the test asks it in words of its own."""
    cycle = rng.choice(CYCLES)
    noun = {7: "day", 12: "month", 26: "letter"}[len(cycle)]
    at = rng.randrange(1, len(cycle) - 1)
    after = rng.random() < 0.5
    asks = ("Tell me the {k} {w} {x}.",) if held_out else ("What comes {w} {x}?", "Which {k} comes {w} {x}?", "What {k} is {w} {x}?", "The {k} {w} {x}?")
    item = cycle[at + 1 if after else at - 1]
    return _one(rng, *asks, k=noun, w="after" if after else "before", x=cycle[at]), item, Exact(item)


def _person(rng: Random, held_out: bool) -> tuple[str, dict[str, object]]:
    name, city = _free(rng, "names", held_out).title(), _free(rng, "cities").title()
    age, job, food = rng.randint(5, 95), _free(rng, "jobs"), _free(rng, "foods")
    pet, pet_name = pick(rng, "pets"), _free(rng, "pet_names").title()
    return rng.choice((
        (f"{name} is {age} years old and lives in {city}.", {"name": name, "age": age, "city": city}),
        (f"{name} lives in {city} and works as a {job}.", {"name": name, "city": city, "job": job}),
        (f"{name} is {age} and works as a {job}.", {"name": name, "age": age, "job": job}),
        (f"{name} is a {job} from {city}.", {"name": name, "job": job, "city": city}),
        (f"{name}, {age}, likes {food}.", {"name": name, "age": age, "likes": food}),
        (f"{name} has a {pet} called {pet_name}.", {"name": name, "pet": pet, "pet_name": pet_name}),
        (f"{name} is {age} years old, lives in {city} and likes {food}.", {"name": name, "age": age, "city": city, "likes": food}),
    ))  # fmt: skip


def _thing(rng: Random, held_out: bool) -> tuple[str, dict[str, object]]:
    thing, colour, food = _free(rng, "objects", held_out), pick(rng, "colours"), _free(rng, "foods")
    price, count, day, hour = rng.randint(1, 99), rng.randint(2, 20), rng.choice(CYCLES[0]), rng.randint(1, 12)
    return rng.choice((
        (f"The {thing} is {colour} and costs {price} dollars.", {"item": thing, "color": colour, "price": price}),
        (f"A {colour} {thing} for {price} euros.", {"item": thing, "color": colour, "price": price}),
        (f"I bought {count} {food} for {price} dollars.", {"item": food, "count": count, "price": price}),
        (f"The meeting about the {thing} is on {day} at {hour}.", {"topic": thing, "day": day, "hour": hour}),
        (f"There are {count} {colour} boxes with a {thing} in each.", {"item": thing, "count": count, "color": colour}),
    ))  # fmt: skip


JSON_ASKS = (
    "Turn this into JSON: {t}", "JSON from this sentence: {t}", "Write as JSON: {t}", "Make JSON from: {t}", "Extract JSON: {t}", "{t} As JSON, please.",
    "Convert to JSON: {t}", "Give me JSON for: {t}", "Please write this as JSON: {t}", "Put this sentence into JSON: {t}", "To JSON: {t}", "JSON: {t}",
    "I need the following as JSON: {t}", "What would this look like in JSON? {t}", "{t} Show that as JSON.", "{t} Turn that into JSON.", "{t} JSON?",
    "{t} Make it JSON.", "{t} Now the same in JSON.", "{t} Convert this to JSON.", "{t} Please give me JSON.", "{t} I want it as JSON.", "{t} (as JSON)",
    "How does this look as JSON? {t}", "What is this in JSON: {t}", "Can you write this as JSON? {t}", "Could you turn this into JSON? {t}",
    "Parse this into JSON: {t}", "Read this and write JSON: {t}", "Transform into JSON: {t}", "Show as JSON: {t}", "Format as JSON: {t}", "Output JSON: {t}",
    "Express this in JSON: {t}", "Here is a sentence: {t} Write it as JSON.", "Take this sentence: {t} Give me the JSON.", "Structured data, please: {t}",
    "As JSON: {t}", "In JSON: {t}", "Make an object of this: {t}", "The JSON of: {t}", "Give the JSON: {t}", "Translate to JSON: {t}", 'Turn "{t}" into JSON.',
    'Write "{t}" as JSON.', "Answer in JSON: {t}", "Reply with JSON only: {t}",
)  # fmt: skip
JSON_TEST = ("Would you put this down as JSON? {t}", "Represent the following in JSON: {t}", "{t} What does that give as JSON?", "Store this as JSON: {t}")


def json_exchange(rng: Random, held_out: bool = False) -> Exchange:
    """A sentence about a person or a thing, as one JSON object."""
    while True:
        if rng.random() < 0.15:
            items = _several(rng, held_out, 2, 5)
            text, value = _comma(items), items
        else:
            text, value = (_person if rng.random() < 0.6 else _thing)(rng, held_out)
        if is_held_out(text) == held_out:
            break
    reply = json.dumps(value)
    ask = rng.choice(JSON_TEST if held_out else JSON_ASKS).format(t=text)
    return Exchange(ask, reply, JsonIs(value))


SHAPES: tuple[Shape, ...] = (
    _repeat, _times, _reverse_words, _spell, _reverse_letters, _count_letters, _count_words, _count_items, _sort_words, _sort_words,
    _sort_numbers, _case, _place, _bullets, _remove, _replace, _mark, _cycle,
)  # fmt: skip
BEFORE = ("", "", "", "", "", "", "Please: ", "Now: ", "Ok. ", "Hey, ")


def exchanges(rng: Random, held_out: bool = False) -> list[Exchange]:
    """One order. Held out are the words and lists themselves."""
    if not held_out and rng.random() < 0.16:
        return [json_exchange(rng)]
    ask, reply, check = rng.choice(SHAPES)(rng, held_out)
    if not held_out:
        ask = rng.choice(BEFORE) + ask
        if rng.random() < 0.15:
            ask = ask[0].lower() + ask[1:]
    return [Exchange(ask, reply, check)]
