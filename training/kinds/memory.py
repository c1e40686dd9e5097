"""Things told in a chat and asked for later."""

from collections.abc import Callable
from random import Random

from training.chat import Exchange
from training.check import Check, Exact, Terms, Words
from training.kinds.traits import TRAITS, Trait, a_name
from training.lexicon import pick
from training.phrasing import made_up, roughly

Distract = Callable[[Random], list[Exchange]]


GENERIC_ASKS = (
    "What is my {l}?", "What's my {l}?", "Do you remember my {l}?", "Do you know my {l}?", "What was my {l} again?", "Tell me my {l}.", "Can you tell me my {l}?",
    "I forgot my {l}. What is it?", "Remind me of my {l}.", "What did I say my {l} was?", "Which {l} did I tell you?", "My {l}, please.", "My {l}?",
    "Have I told you my {l}?", "Please tell me my {l}.", "So, what is my {l}?", "Could you remind me of my {l}?", "Say my {l}.", "And my {l}?",
)  # fmt: skip
GENERIC_TESTS = (
    "Can you recall my {l}?",
    "Let me test you: my {l}?",
    "I told you my {l} before. What was it?",
)
LEADS = (
    "By the way, ",
    "You should know: ",
    "Remember this: ",
    "Please remember: ",
    "Just so you know, ",
    "Fun fact: ",
    "For later: ",
    "Keep in mind: ",
    "Note: ",
)
TAILS = (
    " Please remember that.",
    " Remember that.",
    " Keep that in mind.",
    " I will ask you later.",
    " Don't forget it.",
    " Can you remember that?",
    " Ok?",
)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _roughly(rng: Random, text: str, value: str) -> str:
    """Loose typing that leaves the value alone."""
    rough = roughly(rng, text, slips=0.0)
    return rough if value in rough else text


def _tell(rng: Random, trait: Trait, value: str) -> Exchange:
    reply = _capital(rng.choice(trait.hears).format(v=value))
    told = _capital(rng.choice(trait.tells).format(v=value))
    draw = rng.random()
    told = rng.choice(LEADS) + told if draw < 0.12 else told + rng.choice(TAILS) if draw < 0.24 else told
    user = _roughly(rng, told, value)
    return Exchange(user, reply, Words((value,)))


def _question(rng: Random, trait: Trait, held_out: bool) -> str:
    if held_out:
        return rng.choice((trait.asks[-1], *(q.format(l=trait.label) for q in GENERIC_TESTS)))
    patterns = trait.asks[:-1] if rng.random() < 0.6 else tuple(q.format(l=trait.label) for q in GENERIC_ASKS)
    return roughly(rng, rng.choice(patterns), slips=0.06)


def _ask(rng: Random, trait: Trait, value: str, held_out: bool) -> Exchange:
    return Exchange(_question(rng, trait, held_out), trait.answer.format(v=value), Words((value,)))


def _not_told(rng: Random, trait: Trait, held_out: bool) -> Exchange:
    return Exchange(
        _question(rng, trait, held_out), f"You have not told me your {trait.label} yet.", Terms(("not told",))
    )


def _join(items: list[str]) -> str:
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def _tell_many(rng: Random, told: list[tuple[Trait, str]]) -> Exchange:
    """Two or three things in one message."""
    user = " ".join(_capital(rng.choice(trait.tells[:2]).format(v=value)) for trait, value in told)
    said = "I will remember: your " + _join([f"{trait.label} is {value}" for trait, value in told]) + "."
    return Exchange(user, said, Words(tuple(v for _, v in told)))


def _correction(rng: Random, trait: Trait, value: str) -> Exchange:
    told = rng.choice(trait.tells[:2]).format(v=value)
    user = (
        rng.choice(("No, wait. ", "Sorry, that was wrong. ", "Correction: ", "I was wrong. ", "Actually, "))
        + told
    )
    return Exchange(user, f"All right, I have changed that: {value}.", Words((value,)))


def thread(rng: Random, distract: Distract, held_out: bool = False, gaps: int = 3) -> list[Exchange]:
    """Some things told, other talk in between, and a question for each thing, in any order."""
    traits = rng.sample(TRAITS, rng.choice((1, 1, 2, 3, 4)) + 1)
    missing, told = traits[0], [(trait, trait.value(rng, held_out)) for trait in traits[1:]]
    if rng.random() < 0.12:
        told = [(trait, value.lower()) for trait, value in told]
    talk: list[Exchange] = []
    if len(told) > 1 and rng.random() < 0.3:
        talk.append(_tell_many(rng, told))
    else:
        for trait, value in told:
            talk += [_tell(rng, trait, value), *_between(rng, distract, gaps // 2)]
    if rng.random() < 0.15:
        at = rng.randrange(len(told))
        told[at] = (told[at][0], told[at][0].value(rng, held_out))
        talk.append(_correction(rng, *told[at]))
    talk += _between(rng, distract, gaps)
    rng.shuffle(told)
    questions = [_ask(rng, trait, value, held_out) for trait, value in told]
    if rng.random() < 0.2:
        questions.insert(rng.randrange(len(questions) + 1), _not_told(rng, missing, held_out))
    for question in questions:
        talk += [question, *_between(rng, distract, gaps // 3)]
    return talk


def _between(rng: Random, distract: Distract, most: int) -> list[Exchange]:
    return [exchange for _ in range(rng.randint(0, most)) for exchange in distract(rng)]


LIST_KINDS = ("foods", "objects", "names", "animals", "colours", "cities")
LIST_TELLS = (
    "Remember this list: {l}.",
    "My list: {l}.",
    "My shopping list is {l}.",
    "Keep these in mind: {l}.",
    "Here is a list: {l}.",
    "I need {l}.",
)
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
LIST_ASKS = (
    "What is on my list?", "Repeat my list.", "Read me my list.", "What was on the list?", "Tell me the list again.", "Show me my list.",
    "What did I put on the list?", "My list, please.", "List what I told you.", "What do I have on my list?", "Which things are on my list?", "Print my list.",
    "What is my list?", "Do you remember my list?", "Say my list.", "Can you repeat the list?", "What did I ask you to keep in mind?", "What do I need?",
    "Which items did I give you?", "What are the items on my list?", "Which items are on my list?", "What items did I tell you?", "Tell me the items.",
    "Name the items on my list.", "What was I going to buy?", "Which things did I tell you?", "Which things did I want you to remember?", "The whole list, please.",
    "Can you list my items?", "Give me back the list that I told you.",
)  # fmt: skip


LIST_PLACES = (
    "What is the {o} thing on my list?", "What was the {o} one?", "The {o} item on the list?", "Which one is {o} on my list?", "What is {o} on my list?",
    "Name the {o} thing on the list.", "Which thing is the {o} one?", "Tell me the {o} item.", "What comes {o} on my list?",
    "Which entry of my list is {o}?", "Which item is {o}?", "Item number {o}?", "The {o} one, please.", "What stands {o} on the list?", "Give me the {o} entry.",
)  # fmt: skip
LIST_COUNTS = ("How many things are on my list?", "How many items are on the list?", "Count my list.", "How long is my list?", "How many are on the list?",
               "How many things did I tell you?", "How many items does my list have?", "Count the items on my list.")  # fmt: skip


def list_thread(rng: Random, distract: Distract, held_out: bool = False, gaps: int = 2) -> list[Exchange]:
    """A list told, perhaps added to, and asked for whole or by place."""
    key = rng.choice(LIST_KINDS[:4] if held_out else LIST_KINDS)
    items: list[str] = []
    size = rng.randint(2, 5)
    while len(items) < size:
        item = made_up(rng) if not held_out and rng.random() < 0.1 else pick(rng, key)
        if item not in items:
            items.append(item)
    talk = [
        Exchange(
            rng.choice(LIST_TELLS).format(l=_join(items)),
            f"I will remember the list: {_join(items)}.",
            Words(tuple(items)),
        )
    ]
    talk += _between(rng, distract, gaps)
    if rng.random() < 0.35:
        new = pick(rng, key)
        if new not in items:
            items.append(new)
            talk.append(Exchange(rng.choice(("Add {x} to the list.", "Put {x} on my list.", "Also {x}.", "Please add {x}.")).format(x=new),
                                 f"Added. The list is now: {_join(items)}.", Words(tuple(items))))  # fmt: skip
            talk += _between(rng, distract, gaps // 2)
    for _ in range(rng.randint(1, 2)):
        talk.append(_list_question(rng, items, held_out))
    return talk


def _list_question(rng: Random, items: list[str], held_out: bool) -> Exchange:
    at = rng.randrange(len(items))
    choices: list[tuple[str, str, Check]] = [
        (LIST_ASKS[-1] if held_out else rng.choice(LIST_ASKS[:-1]), "\n".join(f"- {item}" for item in items), Words(tuple(items))),
        (f"Which item did I put {ORDINALS[at]}?" if held_out else rng.choice(LIST_PLACES).format(o=ORDINALS[at]),
         f"The {ORDINALS[at]} one is {items[at]}.", Words((items[at],))),
        ("How many entries has my list got?" if held_out else rng.choice(LIST_COUNTS),
         f"There are {len(items)} things on your list.", Words((str(len(items)),))),
    ]  # fmt: skip
    question, reply, check = rng.choice(choices)
    return Exchange(question if held_out else roughly(rng, question, slips=0.05), reply, check)


RELATIONS = (
    ("{n} likes {v}.", ("What does {n} like?", "Which food does {n} like?", "{n} likes what?"), "{n} likes {v}.", ("Who likes {v}?", "Which of them likes {v}?"), "foods"),
    ("{n} lives in {v}.", ("Where does {n} live?", "In which city does {n} live?", "{n} lives where?"), "{n} lives in {v}.", ("Who lives in {v}?", "Which of them lives in {v}?"), "cities"),
    ("{n} has a {v}.", ("What does {n} have?", "What has {n} got?", "{n} has what?"), "{n} has a {v}.", ("Who has a {v}?", "Which of them has a {v}?", "Who has the {v}?"), "objects"),
    ("{n} wears a {v} hat.", ("What colour is the hat of {n}?", "Which hat does {n} wear?", "The hat of {n}?"), "The hat of {n} is {v}.", ("Whose hat is {v}?", "Who wears a {v} hat?"), "colours"),
    ("{n} works as a {v}.", ("What does {n} work as?", "What is the job of {n}?", "What does {n} do for a living?"), "{n} works as a {v}.", ("Who works as a {v}?", "Who is the {v}?", "Which of them works as a {v}?"), "jobs"),
    ("{n} is {v} years old.", ("How old is {n}?", "What is the age of {n}?"), "{n} is {v} years old.", ("Who is {v} years old?", "Who is {v}?"), ""),
)  # fmt: skip


def relation_thread(rng: Random, distract: Distract, held_out: bool = False, gaps: int = 2) -> list[Exchange]:
    """Several people with one thing each; then who has what. Held out are the names."""
    fact, whats, answer, whos, key = rng.choice(RELATIONS)
    people: dict[str, str] = {}
    size = rng.randint(2, 4)
    while len(people) < size:
        value = str(rng.randint(3, 99)) if not key else made_up(rng) if rng.random() < 0.1 else pick(rng, key)
        if value not in people.values():
            people[a_name(rng, held_out)] = value
    pairs = list(people.items())
    told = [fact.format(n=n, v=v) for n, v in pairs]
    noted = rng.choice(("Noted.", "I will remember that.", "All right."))
    if rng.random() < 0.5:
        talk = [Exchange(" ".join(told), noted, Terms(()))]
    else:
        talk = [
            e
            for line in told
            for e in (Exchange(line, noted, Terms(())), *_between(rng, distract, gaps // 4))
        ]
    talk += _between(rng, distract, gaps)
    rng.shuffle(pairs)
    for n, v in pairs[: rng.choice((1, 2, 4))]:
        if rng.random() < 0.4:
            talk.append(Exchange(rng.choice(whats).format(n=n), answer.format(n=n, v=v), Words((v,))))
        else:
            talk.append(Exchange(rng.choice(whos).format(v=v), f"That is {n}.", Words((n,))))
    return talk


SAID_FIRST = (
    "What did I say first?", "What was my first message?", "What was the first thing I said?", "How did I begin this chat?", "What did I write first?",
    "With what did I start?", "Repeat my first message.", "What was my first question?", "What did I ask first?", "Which message came first from me?",
)  # fmt: skip
SAID_LAST = (
    "What did I just say?", "What was my last message?", "Repeat what I said before.", "Which message did I send before this one?", "What did I say before this?",
    "What did I just ask?", "What was my last question?", "Repeat my last message.", "What did I write just now?", "Quote my message before this one.",
)  # fmt: skip


def say_back(rng: Random, distract: Distract, held_out: bool = False, gaps: int = 2) -> list[Exchange]:
    """What did I say first, what did I just say."""
    talk = _between(rng, distract, max(gaps, 1)) or distract(rng)
    said, asks = (talk[0].user, SAID_FIRST) if rng.random() < 0.5 else (talk[-1].user, SAID_LAST)
    question = asks[-1] if held_out else roughly(rng, rng.choice(asks[:-1]), slips=0.05)
    return [*talk, Exchange(question, f'You said: "{said}"', Exact(f'You said: "{said}"'))]


def exchanges(rng: Random, distract: Distract, held_out: bool = False, gaps: int = 3) -> list[Exchange]:
    shape = rng.choices((thread, list_thread, relation_thread, say_back), (0.48, 0.15, 0.3, 0.07))[0]
    return shape(rng, distract, held_out, gaps)
