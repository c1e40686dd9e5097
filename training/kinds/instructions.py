"""Small tasks on words and lists. Whole phrasings are in text/orders.toml, parts for more in text/ordering.toml."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random

from training.chat import Exchange
from training.check import Check, Exact, Terms, Words
from training.kinds import json_of
from training.kinds.numbers import spell
from training.kinds.ordering import compose, composed_ways
from training.kinds.slots import POOLS, a_word, comma, sentence, several
from training.lexicon import DAYS, MONTHS, TEXT, is_held_out, pick
from training.phrasing import made_up


@dataclass(frozen=True, slots=True)
class Order:
    """`way` is a bank of orders.toml, `slots` the fillers of its patterns, and `reply` the right reply."""

    way: str
    slots: dict[str, str]
    reply: str
    check: Check

    def asked(self, rng: Random, held_out: bool) -> str:
        """The order in one of the whole phrasings."""
        return rng.choice(ways(self.way, held_out)).format(**self.slots)

    def composed(self, rng: Random) -> str:
        """The order in a phrasing composed from parts, with a list in a common format."""
        slots = dict(self.slots)
        if "n" in slots and rng.random() < 0.3:
            slots["n"] = spell(int(slots["n"]))
        if self.way == "place" and rng.random() < 0.15:
            slots["w"] = SHORT.get(slots["w"], slots["w"])
        if ", " in slots.get("l", "") and rng.random() < 0.15:
            slots["l"] = listed(rng, slots["l"].split(", "))
        return compose(rng, self.way, ways(self.way, held_out=True)).format(**slots)


@cache
def _read() -> dict[str, dict[str, tuple[str, ...]]]:
    raw = tomllib.loads((TEXT / "orders.toml").read_text(encoding="utf-8"))
    return {way: {side: tuple(lines) for side, lines in sides.items()} for way, sides in raw.items()}


def ways(way: str, held_out: bool) -> tuple[str, ...]:
    """The patterns of an order on one side of the split."""
    return _read()[way]["test" if held_out else "train"]


def every_way() -> tuple[str, ...]:
    return tuple(_read())


SHORT = {"first": "1st", "second": "2nd", "third": "3rd", "fourth": "4th"}


def listed(rng: Random, items: list[str]) -> str:
    """A list with separators other than commas."""
    if rng.random() < 0.4:
        return f"{', '.join(items[:-1])} and {items[-1]}"
    if rng.random() < 0.2:
        return "".join(f"\n- {item}" for item in items)
    return rng.choice(("\n", "; ", " / ", ",", " | ")).join(items)


def _exact(way: str, reply: str, **slots: str) -> Order:
    return Order(way, slots, reply, Exact(reply))


def _text(rng: Random, held_out: bool, most: int = 3, sentences: float = 0.5) -> str:
    """A sentence, or a few words."""
    if rng.random() < sentences:
        return sentence(rng, held_out)
    return " ".join(several(rng, held_out, 1, most))


def _repeat(rng: Random, held_out: bool) -> Order:
    text = _text(rng, held_out, most=4, sentences=0.6)
    return _exact("repeat", text, t=text)


def _times(rng: Random, held_out: bool) -> Order:
    """Repeat a word; more than six times as a numbered list, so that the count is right."""
    word, n = a_word(rng, held_out), rng.randint(2, 6) if rng.random() < 0.6 else rng.randint(7, 30)
    lines = "\n".join(f"{i}. {word}" for i in range(1, n + 1))
    return _exact("times", lines if n > 6 else " ".join([word] * n), w=word, n=str(n))


def _reverse_words(rng: Random, held_out: bool) -> Order:
    items = several(rng, held_out, 2, 6)
    if rng.random() < 0.5:
        return _exact("reverse_list", comma(items[::-1]), l=comma(items))
    return _exact("reverse_words", " ".join(items[::-1]), l=" ".join(items))


def _spell(rng: Random, held_out: bool) -> Order:
    word = a_word(rng, held_out, 10)
    return _exact("spell", "-".join(word), w=word)


def _reverse_letters(rng: Random, held_out: bool) -> Order:
    word = a_word(rng, held_out, 7)
    reply = f"{'-'.join(word)} backwards is {'-'.join(word[::-1])}: {word[::-1]}"
    return _exact("reverse_letters", reply, w=word)


def _count_letters(rng: Random, held_out: bool) -> Order:
    word = a_word(rng, held_out, 9 if held_out else 12)
    reply = f"{'-'.join(word)} has {len(word)} letters."
    return Order("count_letters", {"w": word}, reply, Words((f"{len(word)} letters",)))


def _count_letter(rng: Random, held_out: bool) -> Order:
    """How many r are in strawberry: spell the word, list each occurrence, then count them."""
    word = a_word(rng, held_out)
    letter = rng.choice(word) if rng.random() < 0.85 else rng.choice("abcdefghijklmnopqrstuvwxyz")
    if not held_out and rng.random() < 0.4:
        letter = max(word, key=word.count)  # two or more is rare, and hard
    n = word.count(letter)
    found = f"{', '.join([letter] * n)}. That is {n}." if n else f"no {letter}."
    slots = {"w": word, "c": letter}
    return Order("count_letter", slots, f"{'-'.join(word)}: {found}", Terms((found,)))


def _count_words(rng: Random, held_out: bool) -> Order:
    text = _text(rng, held_out, most=8)
    n = len(text.split())
    reply = f"There are {n} words." if n > 1 else "There is 1 word."
    return Order("count_words", {"t": text}, reply, Words((str(n),)))


def _count_items(rng: Random, held_out: bool) -> Order:
    items = several(rng, held_out, 2, 8)
    reply = f"There are {len(items)} items."
    return Order("count_items", {"l": comma(items)}, reply, Words((str(len(items)),)))


def _sort_words(rng: Random, held_out: bool) -> Order:
    items = several(rng, held_out, 2, 5)
    return _exact("sort_words", comma(sorted(items, key=str.lower)), l=comma(items))


def _sort_numbers(rng: Random, held_out: bool) -> Order:
    while True:
        numbers = rng.sample(range(rng.choice((10, 100, 100, 1000))), rng.randint(3, 6))
        if is_held_out(repr(numbers)) == held_out:
            break
    down = rng.random() < 0.3
    reply = comma([str(n) for n in sorted(numbers, reverse=down)])
    return _exact("sort_down" if down else "sort_numbers", reply, l=comma([str(n) for n in numbers]))


def _case(rng: Random, held_out: bool) -> Order:
    text = _text(rng, held_out)
    if not held_out and rng.random() < 0.2:
        text = " ".join(made_up(rng, rng.choice((2, 3))) for _ in range(rng.randint(1, 4)))
    if rng.random() < 0.6:
        return _exact("upper", text.upper(), t=text)
    text = text.upper() if rng.random() < 0.5 else text
    return _exact("lower", text.lower(), t=text)


def _place(rng: Random, held_out: bool) -> Order:
    items = several(rng, held_out, 3, 6)
    at = rng.randrange(min(len(items), 4))
    which, item = ("first", "second", "third", "fourth")[at], items[at]
    if rng.random() < 0.3:
        which, item = "last", items[-1]
    return _exact("place", item, w=which, l=comma(items))


def _bullets(rng: Random, held_out: bool) -> Order:
    items = several(rng, held_out, 2, 6)
    if rng.random() < 0.5:
        return _exact("bullets", "\n".join(f"- {item}" for item in items), l=comma(items))
    return _exact("numbered", "\n".join(f"{i}. {item}" for i, item in enumerate(items, 1)), l=comma(items))


def _remove(rng: Random, held_out: bool) -> Order:
    items = several(rng, held_out, 3, 6)
    gone = rng.choice(items)
    return _exact("remove", comma([item for item in items if item != gone]), x=gone, l=comma(items))


def _replace(rng: Random, held_out: bool) -> Order:
    while True:
        words = sentence(rng, held_out).split()
        old, new = rng.choice(words), pick(rng, rng.choice(POOLS))
        if words.count(old) == 1:
            reply = " ".join(new if w == old else w for w in words)
            return _exact("replace", reply, a=old, b=new, t=" ".join(words))


MARKS = {
    "bold": "**{t}**", "quotes": '"{t}"', "code": "`{t}`", "heading": "# {t}", "brackets": "({t})", "block": "```\n{t}\n```",
}  # fmt: skip


def _mark(rng: Random, held_out: bool) -> Order:
    text = " ".join(several(rng, held_out, 1, 3))
    mark = rng.choice(tuple(MARKS))
    return _exact(mark, MARKS[mark].format(t=text), t=text)


CYCLES = (DAYS, MONTHS, tuple("abcdefghijklmnopqrstuvwxyz"))


def _cycle(rng: Random, held_out: bool) -> Order:
    """Small enough to be memorized."""
    cycle = rng.choice(CYCLES)
    noun = {7: "day", 12: "month", 26: "letter"}[len(cycle)]
    at = rng.randrange(1, len(cycle) - 1)
    after = rng.random() < 0.5
    item = cycle[at + 1 if after else at - 1]
    return _exact("cycle", item, k=noun, w="after" if after else "before", x=cycle[at])


SHAPES: tuple[Callable[[Random, bool], Order], ...] = (
    _repeat, _times, _reverse_words, _spell, _reverse_letters, _count_letters, _count_letter, _count_letter, _count_words, _count_items, _sort_words, _sort_words,
    _sort_numbers, _case, _case, _spell, _place, _bullets, _remove, _replace, _mark, _cycle,
)  # fmt: skip
TRAINED = (*SHAPES, _spell, _reverse_letters, _sort_words, _case, _remove, _times)
COMPOSED = 0.7  # share of composed phrasings, for orders with parts
BEFORE = ("Please: ", "Now: ", "Ok. ", "Hey, ", "Next: ")
BIDS = ("Please ", "Can you ", "Could you ", "Now ", "I want you to ", "Would you ", "Ok, ")
VERBS = frozenset(
    "repeat say write echo copy type print reverse turn put list spell count sort order arrange make take name pick number remove delete leave drop "
    "cross strike replace change swap substitute give tell convert bring show".split()
)


def _bidden(rng: Random, order: str) -> str:
    """The order as users phrase it: with a word before it, or as a request."""
    draw = rng.random()
    if draw < 0.2:
        return rng.choice(BEFORE) + order
    if draw < 0.4 and order.split()[0].lower() in VERBS:
        return rng.choice(BIDS) + order[0].lower() + order[1:]
    return order


def exchanges(rng: Random, held_out: bool = False) -> list[Exchange]:
    """One order. The words and lists themselves are held out."""
    if not held_out and rng.random() < 0.22:
        return [json_of.exchange(rng)]
    order = rng.choice(SHAPES if held_out else TRAINED)(rng, held_out)
    if not held_out and order.way in composed_ways() and rng.random() < COMPOSED:
        return [Exchange(order.composed(rng), order.reply, order.check)]
    ask = order.asked(rng, held_out=False)
    if not held_out:
        ask = _bidden(rng, ask)
        if rng.random() < 0.3:
            ask = ask[0].lower() + ask[1:]
    return [Exchange(ask, order.reply, order.check)]


def reworded(rng: Random) -> Exchange:
    """For the tests: an order on held-out words, in a held-out phrasing."""
    order = rng.choice(SHAPES)(rng, True)
    return Exchange(order.asked(rng, held_out=True), order.reply, order.check)
