"""Lists of a requested length, up to 30, and counting, both memorized. The lists are in text/lists.toml."""

import tomllib
from collections.abc import Callable
from functools import cache
from random import Random

from training.chat import Exchange
from training.check import Check, Exact, Honest, ListOf, Terms
from training.kinds.numbers import spell
from training.kinds.unknown import KNOW
from training.lexicon import DAYS, MONTHS, TEXT, is_held_out
from training.phrasing import any_of, made_up, roughly

LONGEST = 30
TOO_LONG = f"That is too long for me: I list up to {LONGEST} things. Ask me for fewer."
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
    "planets", "presidents", "programming languages", "books", "films", "songs", "singers", "inventors", "wars", "companies", "car brands", "phones", "stocks", "websites", "jokes", "poems", "recipes", "actors", "kings", "queens", "painters", "philosophers", "elements",
    "movies", "bands", "novels", "moons", "operating systems", "algorithms", "facts about France", "reasons for the war", "rivers in Africa", "capitals of Europe", "diseases", "medicines", "scientists", "football clubs", "restaurants in Rome", "video games", "tv shows", "anagrams",
    "rivers", "mountains", "lakes", "islands", "volcanoes", "gods", "planets with rings", "synonyms of big", "rhymes on house", "famous people", "laws", "currencies", "chemicals", "quotes", "prime ministers", "poets",
    "sonnets", "essays", "riddles", "proverbs", "plays", "operas", "paintings", "statues", "museums", "castles", "bridges", "towers", "battles", "treaties", "emperors", "saints", "popes", "generals", "explorers", "astronauts", "theorems", "formulas", "equations", "particles", "galaxies", "comets", "constellations", "satellites",
    "viruses", "vitamins", "allergies", "remedies", "lawyers", "politicians", "parties", "newspapers", "magazines", "channels", "podcasts", "influencers", "hashtags", "passwords", "shortcuts in Word", "pages on the web", "shops near me", "hotels in Paris", "flights to Rome", "trains to Berlin", "slang words", "idioms", "adverbs", "verbs in French",
    "words in Latin", "synonyms of happy", "rhymes on moon", "anthems", "flags", "dynasties", "myths", "legends", "heroes of Greece", "titans", "nymphs", "dances", "chords", "symphonies", "composers", "conductors", "drummers", "rappers", "comedians", "directors",
)  # fmt: skip
RAINBOW = ("red", "orange", "yellow", "green", "blue", "indigo", "violet")
SEQUENCES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("days of the week", "seven days of the week", "days", "weekdays", "days in a week"), ", ".join(DAYS)),
    (("months", "months of the year", "twelve months", "months in a year"), ", ".join(MONTHS)),
    (("alphabet", "letters of the alphabet", "abc", "ABC", "English alphabet", "letters from a to z"), ", ".join("abcdefghijklmnopqrstuvwxyz")),
    (("vowels", "five vowels", "vowels of English"), "a, e, i, o, u"),
    (("seasons", "four seasons", "seasons of the year"), "spring, summer, autumn, winter"),
    (("colors of the rainbow", "colors of the rainbow", "rainbow colors", "seven colors of the rainbow"), ", ".join(RAINBOW)),
)  # fmt: skip
SEQUENCE_ASKS = {
    False: (
        "[My child learns|I am learning|We are learning] the {x}[, say them|. List them|. Which are they|, please write them down][.|]",
        "[In the right order|From first to last|One by one|In sequence]: the {x}[.|, please.|]",
        "[I forgot|I never remember|I mix up] the {x}[. What are they|, help me|. Write them down|, which are they]?",
        "List the {x}.", "What are the {x}?", "Name the {x}.", "Tell me the {x}.", "Say the {x}.", "Write the {x}.", "Recite the {x}.", "Do you know the {x}?", "Can you list the {x}?", "Can you say the {x}?", "Give me the {x}.", "all {x}", "The {x}?", "the {x}, please", "Write down the {x}.",
        "Show me the {x}.", "Name all {x}.", "List all {x}.", "Please list the {x}.", "What is the {x}?", "{x}", "Can you tell me the {x}?", "Could you write the {x}?", "I need the {x}.", "Type the {x}.", "which are the {x}", "say all the {x}",
        "[List|Name|Mention|Write|Write down|Put down|Note down|Jot down|Type|Print|Show me|Tell me|Say|Recite|Give me|Enumerate|Go through|Call out] [all |]the {x}[ for me| please| in order||.|.]", "[Can|Could] you [write down|put down|tell me|recite|list|give me|go through] [all |]the {x}[ for me| please|]?",
    ),
    True: ("Let me hear the {x}.", "I would like to see the {x}.", "Would you name the {x}?"),
}  # fmt: skip
COUNTS = {
    False: (
        "[We play hide and seek|I shut my eyes|I'll hide], [count|you count] [to|up to] {b}[.|!|]",
        "[Tick off|Name|Recite|Go up] the numbers from {a} to {b}[.|, please.|, one after the other.|]",
        "[Climb|Walk|March|Step] from {a} [up |]to {b}, [number by number|one at a time|one by one][.|]",
        "Count to {b}.", "Count to {b}", "Please count to {b}.", "Can you count to {b}?", "Count up to {b}.", "Count from {a} to {b}.", "Count from {a} up to {b}.", "Can you count from {a} to {b}?", "Could you count to {b}?", "Count until {b}.", "count till {b}", "Say the numbers from {a} to {b}.",
        "Write the numbers from {a} to {b}.", "List the numbers {a} to {b}.", "Numbers from {a} to {b}.", "the numbers {a} to {b}", "{a} to {b}", "Numbers up to {b}.", "Give me the numbers {a} to {b}.", "Let me see you count to {b}.", "I want you to count to {b}.", "Now count to {b}.",
        "Show me that you can count to {b}.", "Count all the way to {b}.", "Start at {a} and count to {b}.", "can you count up to {b}", "count for me to {b}", "How do you count to {b}?", "Write out the numbers {a} to {b}.", "numbers {a}-{b}", "Tell me the numbers from {a} to {b}.", "Type the numbers {a} to {b}.",
        "[Count|Please count|Can you count|Now count|Start counting|Count upwards|Count up|Go] [from|starting with|starting at|starting from|beginning with|beginning at|beginning from] {a} [to|up to|till|until|and stop at|and end with|through|all the way to] {b}[.|.|, please.| for me.|]",
        "[Count|Please count|Now count|Count up|Count for me], [starting|beginning] [with|at|from] {a}, [to|up to|until|till|and stop at|and end with] {b}[.|.|, please.|]", "[Starting|Beginning] [with|at|from] {a}[,|] [count|please count|count up|keep counting] [to|up to|until|till] {b}[.|]",
        "[Begin|Start] [with|from] {a} and [count|count up|go on] [to|up to|until|till] {b}[.|]", "[The numbers|All numbers|All the numbers|Every number] [from|starting with|beginning with] {a} [to|up to|until] {b}[, please.|.|]",
        "[Give me|Show me|Let me see|I want|I need|Print|Type|Say|Recite|Write down] [the|all] numbers [from|starting at|starting with|beginning with] {a} [to|up to|until] {b}[.|, please.|]", "{a}, and so on[,|] [to|up to|until] {b}[.|]", "Count [on |]from {a} and [stop|end] [at|with|after] {b}[.|]",
    ),
    True: ("Would you count to {b} for me?", "Run through the numbers {a} to {b}.", "Let me hear the numbers {a} to {b}."),
}  # fmt: skip
DOWNS = {
    False: (
        "[The rocket starts|Liftoff|New Year's Eve]: [count down|countdown] from {b}[.|!|]",
        "[Climb|Walk|Step] down from {b} to {a}, [number by number|one at a time|one by one][.|]",
        "Count down from {b}.", "Count down from {b} to {a}.", "Count backwards from {b}.", "Count backwards from {b} to {a}.", "Countdown from {b}.", "Count from {b} to {a}.", "Count from {b} back to {a}.", "A countdown from {b}, please.", "Can you count down from {b}?", "countdown {b}", "{b} to {a}, backwards",
        "Count in reverse from {b}.", "Numbers from {b} down to {a}.", "Start at {b} and count down to {a}.", "Do a countdown from {b}.", "count back from {b} to {a}", "{b} down to {a}",
        "[Count|Please count|Can you count|Now count] [down|backwards|back|in reverse] [from|starting at|starting with|beginning with] {b} [to|down to|till|until|and stop at|and end with] {a}[.|.|, please.|]", "[Count|Please count], [starting|beginning] [with|at|from] {b}, [down|backwards|back] to {a}[.|]",
        "[Starting|Beginning] [with|at|from] {b}[,|] count [down|back|backwards] [to|until] {a}[.|]", "[Give me|Show me|Write down|Say] the numbers [from|starting with] {b} [down|back] to {a}[.|]",
    ),
    True: ("Begin at {b} and go down to {a}.", "Would you count down from {b} to {a}?"),
}  # fmt: skip
WORDS = ("Count to {b} in words.", "Count in words to {b}.", "Write the numbers to {b} in words.", "Count from {a} to {b} in words.", "Count to {b} with words.", "the numbers {a} to {b} as words", "Spell the numbers from {a} to {b}.")  # fmt: skip

Made = tuple[str, str, Check]


@cache
def _lists() -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """The names and the items of each kind."""
    raw = tomllib.loads((TEXT / "lists.toml").read_text(encoding="utf-8"))
    return {
        kind: (tuple(each["names"]), tuple(each["items"].split("|" if "|" in each["items"] else None)))
        for kind, each in raw.items()
    }


def kinds_of_lists() -> dict[str, tuple[str, ...]]:
    return {kind: items for kind, (_, items) in _lists().items()}


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
    names, items = _lists()[kind]
    reply = "\n".join(f"{i}. {item}" for i, item in enumerate(items[:n], 1))
    name = rng.choice(names)
    if n == 5 and not held_out and rng.random() < 0.5:
        ask = any_of(rng, ASKS[False])
        return ask.format(n=rng.choice(SOME), c=name), reply, ListOf(n, items)
    ask = any_of(rng, ASKS[held_out])
    return ask.format(n=_number(rng, n), c=name), reply, ListOf(n, items)


def _strange_list(rng: Random, held_out: bool) -> Made:
    """A list of an unknown kind, or one that is too long."""
    ask = any_of(rng, ASKS[held_out])
    if rng.random() < 0.3:
        n = rng.choice((rng.randint(LONGEST + 1, 120), 50, 100, 1000))
        name = rng.choice(rng.choice(tuple(_lists().values()))[0])
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
    names, reply = rng.choice(SEQUENCES)
    ask = any_of(rng, SEQUENCE_ASKS[held_out])
    return ask.format(x=rng.choice(names)), reply, Exact(reply)


def _count(rng: Random, held_out: bool) -> Made:
    """Counting up or down, in digits or in words, usually from one."""
    a, b = (
        1,
        rng.choice((5, 10, 10, 12, 15, 20, 20, 25, 30)) if rng.random() < 0.4 else rng.randint(3, LONGEST),
    )
    if rng.random() < 0.25:
        a = rng.randint(0, b - 2)
    numbers = list(range(a, b + 1))
    if rng.random() < 0.1 and not held_out:
        reply = ", ".join(spell(n) for n in numbers)
        return _filled(rng, rng.choice(WORDS), a, b), reply, Exact(reply)
    if rng.random() < 0.3:
        way = any_of(rng, DOWNS[held_out])
        reply = ", ".join(map(str, reversed(numbers if "{a}" in way else range(1, b + 1))))
    else:
        way = any_of(rng, COUNTS[held_out])
        reply = ", ".join(map(str, numbers if "{a}" in way else range(1, b + 1)))
    return _filled(rng, way, a, b), reply, Exact(reply)


def _filled(rng: Random, way: str, a: int, b: int) -> str:
    """Both numbers in digits, or both in words."""
    words = rng.random() < 0.35
    return way.format(a=spell(a) if words else a, b=spell(b) if words else b)


SHAPES: tuple[tuple[Callable[[Random, bool], Made], float], ...] = (
    (_list, 0.42),
    (_strange_list, 0.15),
    (_sequence, 0.1),
    (_count, 0.33),
)


def exchanges(rng: Random, held_out: bool = False) -> list[Exchange]:
    """A list or a count. Pairs of a number and a kind are held out, and some phrasings."""
    shape = rng.choices([s for s, _ in SHAPES], [w for _, w in SHAPES])[0]
    asked, reply, check = shape(rng, held_out)
    asked = asked[0].upper() + asked[1:]
    if not held_out:
        asked = roughly(rng, asked, slips=0.03)
    return [Exchange(asked, reply, check)]
