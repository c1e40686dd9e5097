"""Question patterns, and realistic typing: missing capitals, missing punctuation, typos."""

import math
import re
import tomllib
from collections.abc import Sequence
from functools import cache
from random import Random
from string import ascii_lowercase

from training.lexicon import TEXT, every_key, words


@cache
def _banks() -> dict[str, dict[str, tuple[str, ...]]]:
    raw = tomllib.loads((TEXT / "questions.toml").read_text(encoding="utf-8"))
    return {bank: {side: tuple(lines) for side, lines in sides.items()} for bank, sides in raw.items()}


@cache
def families(bank: str, held_out: bool) -> tuple[str, ...]:
    """The question patterns of a bank on one side of the split, with every combination of options."""
    return tuple(each for line in _banks()[bank]["test" if held_out else "train"] for each in variants(line))


def fill(pattern: str, **slots: str) -> str:
    """The pattern with its slots filled; a slot at the start of the sentence is capitalized."""
    text = pattern.format(**slots)
    return text[0].upper() + text[1:] if pattern.startswith("{") and not text.startswith("minichat") else text


_OPTIONS = re.compile(r"\[([^\[\]]*\|[^\[\]]*)\]")


def varied(rng: Random, pattern: str) -> str:
    """The pattern with one option of each pair of brackets: `[my|the] list`."""
    return _OPTIONS.sub(lambda found: rng.choice(found[1].split("|")), pattern)


def any_of(rng: Random, patterns: tuple[str, ...]) -> str:
    """One variant of one of the patterns; a pattern with many variants is more likely."""
    return varied(rng, rng.choices(patterns, _weights(patterns))[0])


@cache
def _weights(patterns: tuple[str, ...]) -> tuple[float, ...]:
    options = ((found.count("|") + 1 for found in _OPTIONS.findall(pattern)) for pattern in patterns)
    return tuple(math.sqrt(math.prod(counts)) for counts in options)


def variants(pattern: str) -> list[str]:
    """The pattern with every combination of the options in brackets."""
    found = _OPTIONS.search(pattern)
    if found is None:
        return [pattern]
    head, tails = pattern[: found.start()], variants(pattern[found.end() :])
    return [head + option + tail for option in found[1].split("|") for tail in tails]


def phrase(rng: Random, bank: str, held_out: bool, **slots: str) -> str:
    """A question from a bank. In training some are muddled, so that unknown words next to the subject do not matter."""
    pattern = any_of(rng, _banks()[bank]["test" if held_out else "train"])
    if not held_out and bank in ASIDE and rng.random() < 0.22:
        pattern = muddled(rng, pattern, loses=bank not in ("why", "how"))
    if bank in LITERAL:
        return pattern.format(**slots)
    return fill(pattern, **slots)


def muddled(rng: Random, pattern: str, loses: bool) -> str:
    """Drop, replace or insert words, but keep the slots; if `loses` is false, only insert."""
    out: list[str] = []
    for word in pattern.split(" "):
        draw = rng.random()
        if "{" in word or not loses or draw > 0.3:
            out.append(word)
        elif draw > 0.15:
            out.append(_aside(rng))
        if rng.random() < 0.1:
            out.append(_aside(rng))
    return " ".join(out)


def _aside(rng: Random) -> str:
    return made_up(rng) if rng.random() < 0.25 else rng.choice(_banks()["wrap"]["aside"])


def normal(text: str) -> str:
    """A normal form shared by all spellings of a question: letters of any script, digits and single spaces."""
    return " ".join(re.sub(r"(?:[^\w+*/=.-]|_)+", " ", text.lower()).replace(". ", " ").strip(" .").split())


def wrapped(rng: Random, question: str) -> str:
    """The question, sometimes with a word or a sentence before or after it."""
    draw = rng.random()
    if draw < 0.13:
        before, word = any_of(rng, _banks()["wrap"]["before"]), question.split(" ")[0]
        keeps = before.endswith(". ") or not word[1:].islower()  # P remains P, because p is another key
        return before + (question if keeps else question[0].lower() + question[1:])
    if draw < 0.22:
        return question + any_of(rng, _banks()["wrap"]["after"])
    return question


NEEDS = (
    "I wonder how to {}.",
    "Tell me how to {}.",
    "I'd like to know how to {}.",
    "Any idea how to {}?",
    "Is there a way to {}?",
    "I'm trying to {}.",
    "I don't see how to {}.",
    "Can you tell me how I {}?",
)
WAYS = (
    (r"How (?:do|can|could|would|should) (?:I|we|you|one) (.+)", NEEDS),
    (r"(?:Can|Could|May) I (.+)", ("I wonder if I can {}.", "Tell me if I can {}.", "Is it possible to {}?", "Is there a way to {}?", "Am I able to {}?", "I'd like to {}. Can I?")),
    (r"Where (?:do|can) I (.+)", ("Tell me where to {}.", "I wonder where to {}.", "I don't know where to {}.", "I am looking for the place to {}.")),
    (r"Is there (.+)", ("I wonder if there is {}.", "Tell me if there is {}.", "I am looking for {}.", "Do you have {}?", "{}, is there one?")),
    (r"(?:What|Which) (?:is|are) ((?:\S+ ){0,4}\S+)", ("I wonder about {}.", "I don't know {}.", "I'd like to know {}.", "Something about {}, please.", "Let me know {}.", "And {}?")),
    (r"((?:What happens|What becomes|Which key|Which option|Which command|Who decides|What makes|What limits) .+)", ("I wonder {}.", "Tell me {}.", "I'd like to know {}.", "Do you know {}?", "I have no idea {}.", "Nobody told me {}.")),
)  # fmt: skip
DROPPED = frozenset(
    """a an the do does did is are was were be can could may might should would will i we you one it its my your me us to of that this these
    there please what so and just any some which""".split()
)  # words that a hurried user leaves out


def reworded(rng: Random, question: str) -> str:
    """The question, sometimes in indirect speech or as a few keywords."""
    draw = rng.random()
    if draw < 0.05:
        return _keywords(question)
    if draw < 0.2:
        return _indirect(rng, question)
    return question


def _indirect(rng: Random, question: str) -> str:
    for pattern, frames in WAYS:
        if found := re.fullmatch(pattern, question.rstrip("?")):
            asked = (
                found[1][0].lower() + found[1][1:]
                if found[1].startswith(("What", "Which", "Who"))
                else found[1]
            )
            text = rng.choice(frames).format(asked)
            return text[0].upper() + text[1:]
    return question


def _keywords(question: str) -> str:
    kept = [word for word in question.rstrip("?.!").split() if word.strip(",.?!:").lower() not in DROPPED]
    return " ".join(kept) if len(kept) > 1 else question


OTHER_WORDS = 0.35  # of the questions


def other_words(rng: Random, question: str) -> str:
    """The question, sometimes with rarer words of the same meaning: users do not choose the words of the patterns."""
    if rng.random() >= OTHER_WORDS:
        return question
    known, pattern = _synonyms()
    text = pattern.sub(lambda word: rng.choice(known[word[0]]) if rng.random() < 0.6 else word[0], question)
    if text == question:
        return question
    return _ARTICLE.sub(lambda found: found[1] + ("n" if found[2] in "aeiou" else "") + " " + found[2], text)


_ARTICLE = re.compile(r"(?<![\w-])([aA])n? (?!us|un|eu|hour|hon|one)([a-z])(?=[a-z]{2})")


@cache
def _synonyms() -> tuple[dict[str, list[str]], re.Pattern[str]]:
    """The replacements of each word, and a pattern that finds the words outside of names, options and code."""
    raw = tomllib.loads((TEXT / "synonyms.toml").read_text(encoding="utf-8"))
    known = {word: others.split("|") for group in raw.values() for word, others in group.items()}
    return known, re.compile(
        rf"(?<!minichat )(?<![\w`*/.@+-])(?:{'|'.join(sorted(known, reverse=True))})(?![\w`*/:-])"
    )


SHORT = {
    "you": "u", "are": "r", "your": "ur", "please": "pls", "what is": "whats", "what's": "whats", "i am": "im", "i'm": "im", "do not": "dont", "don't": "dont", "cannot": "cant", "can't": "cant", "does not": "doesnt", "is not": "isnt",
    "want to": "wanna", "going to": "gonna", "got to": "gotta", "kind of": "kinda", "because": "cuz", "message": "msg", "with": "w/", "for": "4", "to": "2", "thanks": "thx", "tomorrow": "tmrw", "something": "smth", "it is": "its", "that is": "thats",
    "how is": "hows", "who is": "whos", "where is": "wheres", "i will": "ill", "people": "ppl", "and": "n", "okay": "k", "right now": "rn", "without": "w/o", "very": "v", "about": "abt", "the": "da", "give me": "gimme", "let me": "lemme",
}  # fmt: skip
RARE = frozenset(("for", "to", "with", "and", "very", "the", "about", "without"))
HEADS = ("yo ", "hey ", "um ", "ok so ", "so ", "bro ", "umm ", "well ", "and ", "but ", "hi ", "ok ")
TAILS = (
    " pls",
    " plz",
    " bro",
    " tho",
    " btw",
    " again",
    " here",
    " lol",
    " now",
    " mate",
    " thx",
    " man",
    " ??",
    "...",
    " pls?",
    " k thx",
)


PICTURES = (
    "👋 🙂 😀 😃 😄 😁 😅 😂 🤣 😊 😉 😍 😘 😎 🤔 🤷 🙄 😢 😭 😡 😱 😴 🤯 🥳 🙏 👍 👎 👏 💪 🔥 🎉 ✨ ❤️ 💔 💯 🚀 🤖 👀 😬 🙃 😇 🥺 😤 🤝 ✅ ❌ ☕ 🐱 🐶 🌍 ⭐ 💡"
).split()  # fmt: skip


def pictured(rng: Random, text: str, of: Sequence[str] = PICTURES) -> str:
    """The text with an emoji behind it, or sometimes before it, or with several."""
    pictures = rng.choice(of) * rng.choice((1, 1, 1, 1, 2, 3)) + rng.choice(("", "", "", rng.choice(of)))
    return f"{pictures} {text}" if rng.random() < 0.15 else f"{text}{rng.choice((' ', ' ', ''))}{pictures}"


def texted(rng: Random, text: str) -> str:
    """The text as typed on a phone: no capitals, abbreviations, perhaps a word before or after it."""
    text = text.lower().rstrip(".!")
    for long, short in SHORT.items():
        if rng.random() < (0.12 if long in RARE else 0.7):
            text = re.sub(rf"\b{long}\b", short, text)
    draw = rng.random()
    if draw < 0.12:
        return rng.choice(HEADS) + text
    return text.rstrip("?") + rng.choice(TAILS) if draw < 0.3 else text


def roughly(rng: Random, text: str, slips: float = 0.12) -> str:
    """The text as typed in a hurry: perhaps in lower case, without final punctuation, with one typo or an emoji."""
    if slips >= TEXTED_FROM and rng.random() < 0.2:
        text = BRITISH.sub(lambda word: word[0] + "u", text)
    if slips >= TEXTED_FROM and rng.random() < 0.14:
        text = texted(rng, text)
    if rng.random() < 0.3:
        text = text.lower()
    if rng.random() < 0.3 and text[-1] in "?.!" and len(text) > 1:
        text = text[:-1]
    elif rng.random() < 0.03:
        text += rng.choice(("?", "!", " ?", "..", "??"))
    if rng.random() < 0.02:
        text = text.upper()
    text = slip(rng, text) if rng.random() < slips else text
    return pictured(rng, text) if slips >= TEXTED_FROM and rng.random() < 0.08 else text


def slip(rng: Random, text: str) -> str:
    spots = [m.start() + 1 for m in re.finditer(r"[a-zA-Z]{4,}", text)]
    if not spots:
        return text
    at = rng.choice(spots) + rng.randrange(2)
    slip = rng.randrange(4)
    if slip == 0:
        return text[:at] + text[at + 1 :]
    if slip == 1:
        return text[:at] + text[at] + text[at:]
    if slip == 2:
        return text[:at] + text[at + 1 : at + 2] + text[at] + text[at + 2 :]
    return text[:at] + rng.choice(ascii_lowercase) + text[at + 1 :]


BRITISH = re.compile(r"(?i)(?<=\bcol)o(?=rs?\b)|(?<=\bfav)o(?=rite)|(?<=\bneighb)o(?=r)")
TEXTED_FROM = 0.04  # typo rate from which abbreviations are used: where typos do harm, they would, too
LITERAL = ("key", "command")  # case is preserved, also at the start of a sentence
ASIDE = ("what", "why", "how", "do", "key", "command", "versus")
ONSETS = "b c d f g h j k l m n p r s t v w z bl br ch cl cr dr fl fr gl gr pl pr sh sk sl sm sn sp st str th tr qu".split()
VOWELS = "a e i o u a e i o ai ea oo ou".split()
CODAS = "b d g k l m n p r s t x ck ll nd ng nt rk sh st th".split() + [""] * 14


def made_up(rng: Random, syllables: int = 2) -> str:
    """An invented word: syllables, or the start of one word with the end of another."""
    if rng.random() < 0.35:
        head, tail = rng.choice(_plain_words()), rng.choice(_plain_words())
        return head[: rng.randint(2, len(head) - 1)] + tail[rng.randint(1, len(tail) - 2) :]
    return "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(syllables))


@cache
def _plain_words() -> tuple[str, ...]:
    """Training words of three or more letters."""
    found = {
        w.lower()
        for key in every_key()
        for entry in words(key, False)
        for w in entry.split()
        if len(w) > 3 and w.isalpha()
    }
    return tuple(sorted(found | {w for w in _banks()["wrap"]["aside"] if len(w) > 3}))
