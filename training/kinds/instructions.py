"""Small orders on words and lists."""

from collections.abc import Callable
from random import Random

from training.chat import Exchange
from training.check import Check, Exact, Words
from training.kinds import json_of
from training.kinds.slots import POOLS, a_word, comma, one, sentence, several
from training.lexicon import DAYS, MONTHS, is_held_out, pick

Shape = Callable[[Random, bool], tuple[str, str, Check]]


def _repeat(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    text = sentence(rng, held_out) if rng.random() < 0.6 else " ".join(several(rng, held_out, 1, 4))
    ask = one(
        rng,
        "Repeat: {t}",
        "Repeat after me: {t}",
        "Say: {t}",
        'Say "{t}".',
        'Repeat "{t}".',
        "Please repeat: {t}",
        "Echo: {t}",
        "Write exactly: {t}",
        t=text,
    )
    return ask, text, Exact(text)


def _times(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    word, n = a_word(rng, held_out), rng.randint(2, 6)
    reply = " ".join([word] * n)
    return (
        one(
            rng,
            "Say {w} {n} times.",
            "Repeat {w} {n} times.",
            "Write {w} {n} times.",
            "{n} times the word {w}, please.",
            w=word,
            n=n,
        ),
        reply,
        Exact(reply),
    )


def _reverse_words(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    items = several(rng, held_out, 2, 6)
    if rng.random() < 0.5:
        reply = comma(items[::-1])
        return (
            one(
                rng,
                "Reverse this list: {l}",
                "Reverse the list {l}.",
                "Turn this list around: {l}",
                "Reverse: {l}",
                "Write this list backwards: {l}",
                l=comma(items),
            ),
            reply,
            Exact(reply),
        )
    reply = " ".join(items[::-1])
    return (
        one(
            rng,
            "Reverse the words: {l}",
            "Reverse the order of these words: {l}",
            "Put these words in reverse order: {l}",
            "Say these words backwards: {l}",
            l=" ".join(items),
        ),
        reply,
        Exact(reply),
    )


def _spell(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    word = a_word(rng, held_out, 10)
    reply = "-".join(word)
    return (
        one(
            rng,
            "Spell {w}.",
            "Spell the word {w}.",
            "How do you spell {w}?",
            "Spell out {w}.",
            "Spell {w} with dashes.",
            "Spell {w}",
            "Spell: {w}",
            "Spell the word {w}",
            "Please spell {w}.",
            "Can you spell {w}?",
            "Spell {w} for me.",
            'Spell "{w}".',
            "How is {w} spelled?",
            "The spelling of {w}?",
            w=word,
        ),
        reply,
        Exact(reply),
    )


def _reverse_letters(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    word = a_word(rng, held_out, 7)
    reply = f"{'-'.join(word)} backwards is {'-'.join(word[::-1])}: {word[::-1]}"
    return (
        one(
            rng,
            "Reverse the word {w}.",
            "Write {w} backwards.",
            "Spell {w} backwards.",
            "What is {w} backwards?",
            "Reverse the letters of {w}.",
            w=word,
        ),
        reply,
        Exact(reply),
    )


def _count_letters(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    word = a_word(rng, held_out, 9)
    reply = f"{'-'.join(word)} has {len(word)} letters."
    return (
        one(
            rng,
            "How many letters are in {w}?",
            "Count the letters in {w}.",
            "How many letters has the word {w}?",
            "How long is the word {w}?",
            w=word,
        ),
        reply,
        Words((f"{len(word)} letters",)),
    )


def _count_words(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    text = sentence(rng, held_out) if rng.random() < 0.5 else " ".join(several(rng, held_out, 2, 8))
    n = len(text.split())
    return (
        one(
            rng,
            "How many words are in: {t}",
            "Count the words: {t}",
            'How many words are in "{t}"?',
            'Count the words in "{t}".',
            t=text,
        ),
        f"There are {n} words.",
        Words((str(n),)),
    )


def _count_items(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    items = several(rng, held_out, 2, 8)
    return (
        one(
            rng,
            "How many items are in this list: {l}",
            "Count the items: {l}",
            "How many things are these: {l}?",
            "Count this list: {l}",
            l=comma(items),
        ),
        f"There are {len(items)} items.",
        Words((str(len(items)),)),
    )


def _sort_words(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    items = several(rng, held_out, 2, 5)
    reply = comma(sorted(items, key=str.lower))
    return (
        one(
            rng,
            "Sort these words: {l}",
            "Sort alphabetically: {l}",
            "Sort this list: {l}",
            "Put these in alphabetical order: {l}",
            "Sort {l} by the alphabet.",
            l=comma(items),
        ),
        reply,
        Exact(reply),
    )


def _sort_numbers(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    while True:
        numbers = rng.sample(range(rng.choice((10, 100, 100, 1000))), rng.randint(3, 6))
        if is_held_out(repr(numbers)) == held_out:
            break
    shown = comma([str(n) for n in numbers])
    down = rng.random() < 0.3
    reply = comma([str(n) for n in sorted(numbers, reverse=down)])
    asks = ("Sort from large to small: {l}", "Sort these numbers in descending order: {l}", "Sort {l}, largest first.") if down else (
        "Sort: {l}", "Sort these numbers: {l}", "Put these numbers in order: {l}", "Sort from small to large: {l}", "Order these numbers: {l}")  # fmt: skip
    return one(rng, *asks, l=shown), reply, Exact(reply)


def _case(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    text = sentence(rng, held_out) if rng.random() < 0.5 else " ".join(several(rng, held_out, 1, 3))
    if rng.random() < 0.6:
        return (
            one(
                rng,
                "Write in capitals: {t}",
                "Upper case: {t}",
                "Make this upper case: {t}",
                "Put this in capital letters: {t}",
                "Shout: {t}",
                "Uppercase: {t}",
                "Uppercase {t}",
                "Upper case {t}",
                "{t} in capitals",
                "{t} in upper case, please",
                "All caps: {t}",
                "In capital letters: {t}",
                "Turn this into upper case: {t}",
                "Capitals: {t}",
                'Write "{t}" in upper case.',
                "To uppercase: {t}",
                t=text,
            ),
            text.upper(),
            Exact(text.upper()),
        )
    text = text.upper() if rng.random() < 0.5 else text
    return (
        one(
            rng,
            "Write in lower case: {t}",
            "Lower case: {t}",
            "Make this lower case: {t}",
            "Put this in small letters: {t}",
            "Lowercase: {t}",
            "Lowercase {t}",
            "Lower case {t}",
            "{t} in lower case, please",
            "In small letters: {t}",
            "Turn this into lower case: {t}",
            'Write "{t}" in lower case.',
            "To lowercase: {t}",
            t=text,
        ),
        text.lower(),
        Exact(text.lower()),
    )


def _place(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    items = several(rng, held_out, 3, 6)
    at = rng.randrange(min(len(items), 4))
    which, item = (
        ("last", items[-1]) if rng.random() < 0.3 else (("first", "second", "third", "fourth")[at], items[at])
    )
    return (
        one(
            rng,
            "What is the {w} item of {l}?",
            "The {w} word in this list: {l}",
            "Which is the {w} of these: {l}",
            "Take the {w} one: {l}",
            w=which,
            l=comma(items),
        ),
        item,
        Exact(item),
    )


def _bullets(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    items = several(rng, held_out, 2, 6)
    if rng.random() < 0.5:
        reply = "\n".join(f"- {item}" for item in items)
        return (
            one(
                rng,
                "Make a list of {l}.",
                "Write as bullet points: {l}",
                "Bullet list: {l}",
                "Turn this into a list: {l}",
                l=comma(items),
            ),
            reply,
            Exact(reply),
        )
    reply = "\n".join(f"{i}. {item}" for i, item in enumerate(items, 1))
    return (
        one(
            rng,
            "Make a numbered list of {l}.",
            "Number these: {l}",
            "Numbered list: {l}",
            "Write a numbered list: {l}",
            l=comma(items),
        ),
        reply,
        Exact(reply),
    )


def _remove(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    items = several(rng, held_out, 3, 6)
    gone = rng.choice(items)
    reply = comma([item for item in items if item != gone])
    return (
        one(
            rng,
            "Remove {x} from this list: {l}",
            "Take {x} out of {l}.",
            "Delete {x}: {l}",
            "The list {l} without {x}?",
            x=gone,
            l=comma(items),
        ),
        reply,
        Exact(reply),
    )


def _replace(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    words = sentence(rng, held_out).split()
    old, new = rng.choice(words), pick(rng, rng.choice(POOLS))
    if words.count(old) > 1:
        return _replace(rng, held_out)
    reply = " ".join(new if w == old else w for w in words)
    return (
        one(
            rng,
            "Replace {a} with {b}: {t}",
            'Replace {a} by {b} in "{t}".',
            "Change {a} to {b}: {t}",
            a=old,
            b=new,
            t=" ".join(words),
        ),
        reply,
        Exact(reply),
    )


def _mark(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    text = " ".join(several(rng, held_out, 1, 3))
    ask, reply = rng.choice((
        ("Write in bold: {t}", "**{t}**"), ("Make this bold: {t}", "**{t}**"), ("Put this in quotes: {t}", '"{t}"'), ("Write as code: {t}", "`{t}`"),
        ("Make this a heading: {t}", "# {t}"), ("Put this in brackets: {t}", "({t})"), ("Write as a code block: {t}", "```\n{t}\n```"),
    ))  # fmt: skip
    return ask.format(t=text), reply.format(t=text), Exact(reply.format(t=text))


CYCLES = (DAYS, MONTHS, tuple("abcdefghijklmnopqrstuvwxyz"))


def _cycle(rng: Random, held_out: bool) -> tuple[str, str, Check]:
    """Small enough to be learned by heart, so the test asks it in words of its own."""
    cycle = rng.choice(CYCLES)
    noun = {7: "day", 12: "month", 26: "letter"}[len(cycle)]
    at = rng.randrange(1, len(cycle) - 1)
    after = rng.random() < 0.5
    asks = (
        ("Tell me the {k} {w} {x}.",)
        if held_out
        else ("What comes {w} {x}?", "Which {k} comes {w} {x}?", "What {k} is {w} {x}?", "The {k} {w} {x}?")
    )
    item = cycle[at + 1 if after else at - 1]
    return one(rng, *asks, k=noun, w="after" if after else "before", x=cycle[at]), item, Exact(item)


SHAPES: tuple[Shape, ...] = (
    _repeat, _times, _reverse_words, _spell, _reverse_letters, _count_letters, _count_words, _count_items, _sort_words, _sort_words,
    _sort_numbers, _case, _case, _spell, _place, _bullets, _remove, _replace, _mark, _cycle,
)  # fmt: skip
BEFORE = ("", "", "", "", "", "", "Please: ", "Now: ", "Ok. ", "Hey, ")


def exchanges(rng: Random, held_out: bool = False) -> list[Exchange]:
    """One order. Held out are the words and lists themselves."""
    if not held_out and rng.random() < 0.16:
        return [json_of.exchange(rng)]
    ask, reply, check = rng.choice(SHAPES)(rng, held_out)
    if not held_out:
        ask = rng.choice(BEFORE) + ask
        if rng.random() < 0.3:
            ask = ask[0].lower() + ask[1:]
    return [Exchange(ask, reply, check)]
