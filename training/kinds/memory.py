"""Things told in a chat and asked for later."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from training.chat import Exchange
from training.check import Check, Exact, Terms, Words
from training.kinds.traits import TRAITS, Trait, a_name
from training.lexicon import pick
from training.phrasing import fill, made_up, roughly

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
LIST_COUNTS = (
    "How many things are on my list?", "How many items are on the list?", "Count my list.", "How long is my list?", "How many are on the list?",
    "How many things did I tell you?", "How many items does my list have?", "Count the items on my list.", "How many entries has my list got?",
    "How many entries does my list have?", "How many entries are on the list?", "What is the size of my list?", "Number of items on my list?",
    "Tell me how many things are on my list.", "My list has how many items?", "How big is my list?", "How many things does the list hold?",
    "How many things do I need?", "How many items did I give you?", "How many did I list?", "Count the entries.", "How many items has the list?",
    "How many points does my list have?", "How many things have I put on the list?", "Please count what is on my list.", "My list: how many things?",
    "Do you know how many things are on my list?", "How many items are there now?", "How many lines has my list?", "How many of them are there?",
)  # fmt: skip
LIST_COUNT_TESTS = ("How many things stand on my list by now?", "Tell me the length of my list.")


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
        (rng.choice(LIST_COUNT_TESTS if held_out else LIST_COUNTS),
         f"There are {len(items)} things on your list.", Words((str(len(items)),))),
    ]  # fmt: skip
    question, reply, check = rng.choice(choices)
    return Exchange(question if held_out else roughly(rng, question, slips=0.05), reply, check)


@dataclass(frozen=True, slots=True)
class Relation:
    """One thing that people have: how it is told, and asked for in both directions. The last of each asks is kept out.

    A note holds the name on both sides of the value. So small a model cannot read backwards: from `{n} likes {v}` alone it
    never learned to find {n} by {v}, but it does find what followed {v} in its own note.
    """

    key: str
    tells: tuple[str, ...]
    says: str
    back: str
    whats: tuple[str, ...]
    whos: tuple[str, ...]

    def note(self, n: str, v: str) -> str:
        return f"{self.says.format(n=n, v=v)}, so {self.back.format(n=n, v=v)}."


RELATIONS = (
    Relation("foods", ("{n} likes {v}.", "{n} loves {v}.", "{n} likes to eat {v}.", "The favourite food of {n} is {v}.", "{n} is fond of {v}."),
             "{n} likes {v}", "{v} will please {n}",
             ("What does {n} like?", "Which food does {n} like?", "{n} likes what?", "What food will please {n}?", "What would {n} like to eat?"),
             ("Who likes {v}?", "Which of them likes {v}?", "Who was it that likes {v}?", "Who loves {v}?", "Do you know who likes {v}?", "{v} will please whom?",
              "Who eats {v}?", "Which person likes {v}?", "Who wants {v}?", "Name the one who likes {v}.", "And who likes {v}?", "Remind me who likes {v}.")),
    Relation("cities", ("{n} lives in {v}.", "{n} is from {v}.", "{n} has a flat in {v}.", "The home of {n} is {v}.", "{n} moved to {v}."),
             "{n} lives in {v}", "{v} is home to {n}",
             ("Where does {n} live?", "In which city does {n} live?", "{n} lives where?", "What is the home of {n}?", "What city does {n} live in?"),
             ("Who lives in {v}?", "Which of them lives in {v}?", "Who was it that lives in {v}?", "Who is from {v}?", "Do you know who lives in {v}?",
              "{v} is home to whom?", "Who is at home in {v}?", "Which person lives in {v}?", "Whose home is {v}?", "Name the one who lives in {v}.",
              "And who lives in {v}?", "Remind me who lives in {v}.")),
    Relation("objects", ("{n} has a {v}.", "{n} owns a {v}.", "{n} bought a {v}.", "I gave {n} a {v}.", "{n} carries a {v}."),
             "{n} has a {v}", "the {v} belongs to {n}",
             ("What does {n} have?", "What has {n} got?", "{n} has what?", "Which thing does {n} have?", "What belongs to {n}?"),
             ("Who has a {v}?", "Which of them has a {v}?", "Who has the {v}?", "Who owns the {v}?", "Whose is the {v}?", "Who was it that has a {v}?",
              "Do you know who has the {v}?", "The {v} belongs to whom?", "Which person has a {v}?", "Name the one who has the {v}.", "And who has the {v}?",
              "Remind me who has the {v}.")),
    Relation("colours", ("{n} wears a {v} hat.", "The hat of {n} is {v}.", "{n} has a {v} hat.", "{n} put on a {v} hat.", "{n} bought a {v} hat."),
             "{n} wears a {v} hat", "the {v} hat belongs to {n}",
             ("What colour is the hat of {n}?", "Which hat does {n} wear?", "The hat of {n}?", "What is the colour of the hat of {n}?", "What hat has {n} got?"),
             ("Whose hat is {v}?", "Who wears a {v} hat?", "Who has a {v} hat?", "Who wears the {v} hat?", "Who owns the {v} hat?", "Whose is the {v} hat?",
              "Which of them wears a {v} hat?", "Do you know whose hat is {v}?", "The {v} hat belongs to whom?", "Name the one with the {v} hat.",
              "And who wears {v}?", "Remind me who wears the {v} hat.")),
    Relation("jobs", ("{n} works as a {v}.", "{n} is a {v}.", "{n} earns money as a {v}.", "The job of {n} is {v}.", "{n} became a {v}."),
             "{n} works as a {v}", "the {v} is {n}",
             ("What does {n} work as?", "What is the job of {n}?", "What does {n} do for a living?", "Which job does {n} have?", "As what does {n} work?"),
             ("Who works as a {v}?", "Who is the {v}?", "Which of them works as a {v}?", "Who is a {v}?", "Who was the {v}?", "Do you know who the {v} is?",
              "The {v} is who?", "Which person works as a {v}?", "What is the name of the {v}?", "Name the {v}.", "And who is the {v}?",
              "Remind me who works as a {v}.")),
    Relation("", ("{n} is {v} years old.", "{n} is {v}.", "The age of {n} is {v}.", "{n} turned {v}.", "{n} has lived for {v} years."),
             "{n} is {v} years old", "{v} is the age of {n}",
             ("How old is {n}?", "What is the age of {n}?", "{n} is how old?", "Tell me the age of {n}.", "How many years old is {n}?"),
             ("Who is {v} years old?", "Who is {v}?", "Which of them is {v}?", "Who was it that is {v}?", "Do you know who is {v}?", "{v} is the age of whom?",
              "Which person is {v} years old?", "Whose age is {v}?", "Name the one who is {v}.", "And who is {v}?", "Remind me who is {v} years old.")),
)  # fmt: skip
NOTED = ("Noted: ", "I will remember: ", "All right: ")
WHO = "I noted that "


def _people(rng: Random, relation: Relation, held_out: bool) -> list[tuple[str, str]]:
    """Two to five people with a thing each, no name and no thing twice."""
    people: dict[str, str] = {}
    size = rng.choice((2, 2, 3, 3, 4, 4, 5))
    while len(people) < size:
        if not relation.key:
            value = str(rng.randint(3, 99))
        else:
            value = (
                made_up(rng)
                if rng.random() < (0.1 if held_out else 0.25)
                else pick(rng, relation.key, held_out)
            )
        if value not in people.values():
            people[a_name(rng, held_out)] = value
    return list(people.items())


def relation_thread(
    rng: Random, distract: Distract, held_out: bool = False, gaps: int = 2, reworded: bool = False
) -> list[Exchange]:
    """Several people with one thing each; then who has what. Held out are names and things, `reworded` also the asks."""
    relation = rng.choice(RELATIONS)
    pairs = _people(rng, relation, held_out)
    same = rng.choice(relation.tells) if rng.random() < 0.7 else ""
    told = [(same or rng.choice(relation.tells)).format(n=n, v=v) for n, v in pairs]
    notes = [relation.note(n, v) for n, v in pairs]
    way = rng.random()
    if way < 0.12:
        return [_told_and_asked(rng, relation, pairs, " ".join(told), " ".join(notes), reworded)]
    talk: list[Exchange] = []
    if way < 0.55:
        message = " ".join(told) if way < 0.4 else _join([line.removesuffix(".") for line in told]) + "."
        talk.append(Exchange(message, rng.choice(NOTED) + " ".join(notes), Words(tuple(v for _, v in pairs))))
    else:
        for line, note, (_, v) in zip(told, notes, pairs, strict=True):
            talk.append(Exchange(line, rng.choice(NOTED) + note, Words((v,))))
            talk += _between(rng, distract, gaps // 4)
    talk += _between(rng, distract, gaps)
    rng.shuffle(pairs)
    for n, v in pairs[: rng.choice((1, 2, 4))]:
        talk.append(_relation_question(rng, relation, n, v, held_out, reworded))
    return talk


def _told_and_asked(
    rng: Random, relation: Relation, pairs: list[tuple[str, str]], told: str, notes: str, reworded: bool
) -> Exchange:
    """All in one message: the reply writes its notes first, and answers from them."""
    n, v = rng.choice(pairs)
    asks = relation.whos[-1:] if reworded else relation.whos[:-1]
    answer = f"{WHO}{relation.back.format(n=n, v=v)}."
    return Exchange(f"{told} {fill(rng.choice(asks), n=n, v=v)}", f"{notes} {answer}", Terms((answer,)))


def _relation_question(
    rng: Random, relation: Relation, n: str, v: str, held_out: bool, reworded: bool
) -> Exchange:
    backwards = rng.random() < 0.65
    asks = relation.whos if backwards else relation.whats
    question = fill(asks[-1] if reworded else rng.choice(asks[:-1]), n=n, v=v)
    if not held_out:
        question = _roughly(rng, question, n if not backwards else v)
    if backwards:
        return Exchange(question, f"{WHO}{relation.back.format(n=n, v=v)}.", Words((n,)))
    return Exchange(question, f"{relation.says.format(n=n, v=v)}.", Words((v,)))


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
