"""Things told in a chat and asked for later."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from training.chat import Exchange
from training.check import Check, Exact, Terms, Words
from training.lexicon import pick
from training.phrasing import made_up, roughly

Distract = Callable[[Random], list[Exchange]]


@dataclass(frozen=True, slots=True)
class Trait:
    """One thing a person may tell: ways to tell it, ways to ask for it (the last one only in tests), the answer."""

    label: str
    tells: tuple[str, ...]
    hears: tuple[str, ...]
    asks: tuple[str, ...]
    answer: str
    value: Callable[[Random, bool], str]


def _name(rng: Random, held_out: bool) -> str:
    return pick(rng, "names", held_out) if held_out or rng.random() < 0.6 else made_up(rng, rng.choice((1, 2, 2, 3))).title()


def _from(key: str) -> Callable[[Random, bool], str]:
    def value(rng: Random, held_out: bool) -> str:
        return made_up(rng) if not held_out and rng.random() < 0.1 else pick(rng, key, held_out)

    return value


def _pet_name(rng: Random, held_out: bool) -> str:
    return made_up(rng).title() if not held_out and rng.random() < 0.3 else pick(rng, "pet_names", held_out)


def _number(low: int, high: int) -> Callable[[Random, bool], str]:
    return lambda rng, held_out: str(rng.randint(low, high))


def _code(rng: Random, held_out: bool) -> str:
    return made_up(rng, 2) + str(rng.randint(0, 99)) if rng.random() < 0.3 else made_up(rng, rng.choice((2, 3)))


def _clock(rng: Random, held_out: bool) -> str:
    return f"{rng.randint(1, 12)}:{rng.choice(('00', '15', '30', '45'))}"


def _city(rng: Random, held_out: bool) -> str:
    return made_up(rng).title() if not held_out and rng.random() < 0.2 else pick(rng, "cities", held_out)


DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December")

TRAITS = (
    Trait("name", ("My name is {v}.", "I am {v}.", "I'm {v}.", "Call me {v}.", "Hi, I am {v}.", "Hello, my name is {v}.", "You can call me {v}.", "{v} is my name."),
          ("Nice to meet you, {v}!", "Hello {v}, nice to meet you!"),
          ("What is my name?", "Do you know my name?", "Who am I?", "What am I called?", "Do you remember my name?", "What's my name?", "Tell me my name.", "Say my name.", "Remind me what my name is."),
          "Your name is {v}.", _name),
    Trait("favourite colour", ("My favourite colour is {v}.", "My favorite color is {v}.", "I like the colour {v} best.", "The colour I love most is {v}."),
          ("{v} is a fine colour. I will remember it.", "Noted: your favourite colour is {v}."),
          ("What is my favourite colour?", "What's my favorite color?", "Which colour do I like best?", "Do you remember my favourite colour?", "What colour do I like?", "Name the colour that I like most."),
          "Your favourite colour is {v}.", _from("colours")),
    Trait("favourite food", ("My favourite food is {v}.", "I love {v}.", "I like to eat {v}.", "The food I like best is {v}."),
          ("{v}, good choice. I will remember it.", "Noted: you like {v}."),
          ("What is my favourite food?", "What do I like to eat?", "Which food do I like?", "Do you remember what I like to eat?", "What food do I love?", "Name the food that I like most."),
          "Your favourite food is {v}.", _from("foods")),
    Trait("city", ("I live in {v}.", "I am from {v}.", "My home is in {v}.", "My city is {v}.", "I come from {v}."),
          ("{v}, noted.", "I will remember that you live in {v}."),
          ("Where do I live?", "Which city do I live in?", "Where am I from?", "What is my city?", "Do you remember where I live?", "In which city is my home?"),
          "You live in {v}.", _city),
    Trait("job", ("I work as a {v}.", "My job is {v}.", "I am a {v} by profession.", "I earn my money as a {v}."),
          ("A {v}, noted.", "I will remember that you work as a {v}."),
          ("What is my job?", "What do I do for a living?", "What do I work as?", "Do you remember my job?", "What's my profession?", "Which job do I have?"),
          "You work as a {v}.", _from("jobs")),
    Trait("hobby", ("My hobby is {v}.", "In my free time I like {v}.", "I enjoy {v}.", "My favourite pastime is {v}."),
          ("{v}, that sounds like fun.", "Noted: your hobby is {v}."),
          ("What is my hobby?", "What do I like to do?", "Which hobby do I have?", "Do you remember my hobby?", "What do I enjoy?", "How do I spend my free time?"),
          "Your hobby is {v}.", _from("hobbies")),
    Trait("age", ("I am {v} years old.", "My age is {v}.", "I'm {v} years old.", "I turned {v} this year."),
          ("{v} years, noted.", "I will remember that you are {v} years old."),
          ("How old am I?", "What is my age?", "Do you remember my age?", "What's my age?", "Tell me how old I am.", "How many years old am I?"),
          "You are {v} years old.", _number(5, 99)),
    Trait("lucky number", ("My lucky number is {v}.", "My favourite number is {v}.", "Remember the number {v}.", "The number is {v}."),
          ("{v}, noted.", "I will remember the number {v}."),
          ("What is my lucky number?", "Which number did I tell you?", "What was the number?", "Do you remember my number?", "What's my favourite number?", "Which number should you remember?"),
          "The number is {v}.", _number(0, 9999)),
    Trait("code word", ("The code word is {v}.", "The password is {v}.", "Remember the word {v}.", "Our secret word is {v}.", "Keep this word in mind: {v}"),
          ("I will remember the word {v}.", "Noted: {v}."),
          ("What is the code word?", "What is the password?", "Which word did I ask you to remember?", "What's the secret word?", "What was the word?", "Tell me the word that you should remember."),
          "The word is {v}.", _code),
    Trait("dog's name", ("My dog is called {v}.", "I have a dog named {v}.", "My dog's name is {v}.", "The name of my dog is {v}."),
          ("{v} is a good name for a dog.", "I will remember your dog {v}."),
          ("What is my dog called?", "What is the name of my dog?", "What's my dog's name?", "Do you remember my dog's name?", "How is my dog called?", "Which name does my dog have?"),
          "Your dog is called {v}.", _pet_name),
    Trait("cat's name", ("My cat is called {v}.", "I have a cat named {v}.", "My cat's name is {v}.", "The name of my cat is {v}."),
          ("{v} is a good name for a cat.", "I will remember your cat {v}."),
          ("What is my cat called?", "What is the name of my cat?", "What's my cat's name?", "Do you remember my cat's name?", "How is my cat called?", "Which name does my cat have?"),
          "Your cat is called {v}.", _pet_name),
    Trait("sister's name", ("My sister is called {v}.", "I have a sister named {v}.", "My sister's name is {v}.", "The name of my sister is {v}."),
          ("Say hello to {v} from me.", "I will remember your sister {v}."),
          ("What is my sister called?", "What is the name of my sister?", "What's my sister's name?", "Who is my sister?", "Do you remember my sister's name?", "Which name does my sister have?"),
          "Your sister is called {v}.", _name),
    Trait("brother's name", ("My brother is called {v}.", "I have a brother named {v}.", "My brother's name is {v}.", "The name of my brother is {v}."),
          ("Say hello to {v} from me.", "I will remember your brother {v}."),
          ("What is my brother called?", "What is the name of my brother?", "What's my brother's name?", "Who is my brother?", "Do you remember my brother's name?", "Which name does my brother have?"),
          "Your brother is called {v}.", _name),
    Trait("best friend's name", ("My best friend is {v}.", "My friend is called {v}.", "I have a friend named {v}.", "My best friend's name is {v}."),
          ("It is good to have a friend like {v}.", "I will remember your friend {v}."),
          ("Who is my best friend?", "What is my friend called?", "What's the name of my friend?", "Do you remember my friend?", "Who is my friend?", "Which name does my friend have?"),
          "Your friend is called {v}.", _name),
    Trait("meeting", ("My meeting is at {v}.", "I have a meeting at {v}.", "The meeting starts at {v}.", "Remember that I meet them at {v}."),
          ("I will remember the meeting at {v}.", "{v}, noted."),
          ("When is my meeting?", "At what time is my meeting?", "When does the meeting start?", "What time is my meeting?", "Do you remember when my meeting is?", "At which hour do I have the meeting?"),
          "Your meeting is at {v}.", _clock),
    Trait("birthday", ("My birthday is in {v}.", "I was born in {v}.", "My birthday month is {v}.", "I have my birthday in {v}."),
          ("{v}, a good month for a birthday.", "I will remember: your birthday is in {v}."),
          ("When is my birthday?", "In which month is my birthday?", "When was I born?", "What is my birthday month?", "Do you remember my birthday?", "Which month is my birthday in?"),
          "Your birthday is in {v}.", lambda rng, held_out: rng.choice(MONTHS)),
    Trait("day off", ("My day off is {v}.", "I do not work on {v}.", "{v} is my free day.", "I am free on {v}."),
          ("{v}, noted.", "I will remember that you are free on {v}."),
          ("When is my day off?", "Which day am I free?", "On which day do I not work?", "What is my free day?", "Do you remember my day off?", "Which day of the week do I have off?"),
          "Your day off is {v}.", lambda rng, held_out: rng.choice(DAYS)),
)  # fmt: skip


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _roughly(rng: Random, text: str, value: str) -> str:
    """Loose typing that leaves the value alone."""
    rough = roughly(rng, text, slips=0.0)
    return rough if value in rough else text


def _tell(rng: Random, trait: Trait, value: str) -> Exchange:
    reply = _capital(rng.choice(trait.hears).format(v=value))
    user = _roughly(rng, _capital(rng.choice(trait.tells).format(v=value)), value)
    return Exchange(user, reply, Words((value,)))


def _ask(rng: Random, trait: Trait, value: str, held_out: bool) -> Exchange:
    question = trait.asks[-1] if held_out else roughly(rng, rng.choice(trait.asks[:-1]), slips=0.06)
    return Exchange(question, trait.answer.format(v=value), Words((value,)))


def _not_told(rng: Random, trait: Trait, held_out: bool) -> Exchange:
    question = trait.asks[-1] if held_out else roughly(rng, rng.choice(trait.asks[:-1]), slips=0.06)
    return Exchange(question, f"You have not told me your {trait.label} yet.", Terms(("not told",)))


def _join(items: list[str]) -> str:
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def _tell_many(rng: Random, told: list[tuple[Trait, str]]) -> Exchange:
    """Two or three things in one message."""
    user = " ".join(_capital(rng.choice(trait.tells[:2]).format(v=value)) for trait, value in told)
    said = "I will remember: your " + _join([f"{trait.label} is {value}" for trait, value in told]) + "."
    return Exchange(user, said, Words(tuple(v for _, v in told)))


def _correction(rng: Random, trait: Trait, value: str) -> Exchange:
    told = rng.choice(trait.tells[:2]).format(v=value)
    user = rng.choice(("No, wait. ", "Sorry, that was wrong. ", "Correction: ", "I was wrong. ", "Actually, ")) + told
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
LIST_TELLS = ("Remember this list: {l}.", "My list: {l}.", "My shopping list is {l}.", "Keep these in mind: {l}.", "Here is a list: {l}.", "I need {l}.")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
LIST_ASKS = (
    "What is on my list?", "Repeat my list.", "Read me my list.", "What was on the list?", "Tell me the list again.", "Show me my list.",
    "What did I put on the list?",
)  # fmt: skip


def list_thread(rng: Random, distract: Distract, held_out: bool = False, gaps: int = 2) -> list[Exchange]:
    """A list told, perhaps added to, and asked for whole or by place."""
    key = rng.choice(LIST_KINDS[:4] if held_out else LIST_KINDS)
    items: list[str] = []
    size = rng.randint(2, 5)
    while len(items) < size:
        item = made_up(rng) if not held_out and rng.random() < 0.1 else pick(rng, key)
        if item not in items:
            items.append(item)
    talk = [Exchange(rng.choice(LIST_TELLS).format(l=_join(items)), f"I will remember the list: {_join(items)}.", Words(tuple(items)))]
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
        (f"Which one is {ORDINALS[at]} on my list?" if held_out else rng.choice(("What is the {o} thing on my list?", "What was the {o} one?", "The {o} item on the list?")).format(o=ORDINALS[at]),
         f"The {ORDINALS[at]} one is {items[at]}.", Words((items[at],))),
        ("How long is my list?" if held_out else rng.choice(("How many things are on my list?", "How many items are on the list?", "Count my list.")),
         f"There are {len(items)} things on your list.", Words((str(len(items)),))),
    ]  # fmt: skip
    question, reply, check = rng.choice(choices)
    return Exchange(question if held_out else roughly(rng, question, slips=0.05), reply, check)


RELATIONS = (
    ("{n} likes {v}.", "What does {n} like?", "{n} likes {v}.", "Who likes {v}?", "foods"),
    ("{n} lives in {v}.", "Where does {n} live?", "{n} lives in {v}.", "Who lives in {v}?", "cities"),
    ("{n} has a {v}.", "What does {n} have?", "{n} has a {v}.", "Who has a {v}?", "objects"),
    ("{n} wears a {v} hat.", "What colour is the hat of {n}?", "The hat of {n} is {v}.", "Whose hat is {v}?", "colours"),
    ("{n} works as a {v}.", "What does {n} work as?", "{n} works as a {v}.", "Who works as a {v}?", "jobs"),
)


def relation_thread(rng: Random, distract: Distract, held_out: bool = False, gaps: int = 2) -> list[Exchange]:
    """Several people with one thing each; then who has what."""
    fact, what, answer, who, key = rng.choice(RELATIONS)
    people: dict[str, str] = {}
    while len(people) < 3:
        value = pick(rng, key)
        if value not in people.values():
            people[_name(rng, held_out)] = value
    pairs = list(people.items())[: rng.randint(2, 3)]
    user = " ".join(fact.format(n=n, v=v) for n, v in pairs)
    talk = [Exchange(user, rng.choice(("Noted.", "I will remember that.", "All right.")), Terms(()))]
    talk += _between(rng, distract, gaps)
    n, v = rng.choice(pairs)
    if rng.random() < 0.5:
        talk.append(Exchange(what.format(n=n), answer.format(n=n, v=v), Words((v,))))
    else:
        talk.append(Exchange(who.format(v=v), f"That is {n}.", Words((n,))))
    return talk


def say_back(rng: Random, distract: Distract, held_out: bool = False, gaps: int = 2) -> list[Exchange]:
    """What did I say first, what did I just say."""
    talk = _between(rng, distract, max(gaps, 1)) or distract(rng)
    if rng.random() < 0.5:
        said, asks = talk[0].user, ("What did I say first?", "What was my first message?", "What was the first thing I said?", "How did I begin this chat?")
    else:
        said, asks = talk[-1].user, ("What did I just say?", "What was my last message?", "Repeat what I said before.", "Which message did I send before this one?")
    question = asks[-1] if held_out else roughly(rng, rng.choice(asks[:-1]), slips=0.05)
    return [*talk, Exchange(question, f'You said: "{said}"', Exact(f'You said: "{said}"'))]


def exchanges(rng: Random, distract: Distract, held_out: bool = False, gaps: int = 3) -> list[Exchange]:
    shape = rng.choices((thread, list_thread, relation_thread, say_back), (0.6, 0.2, 0.13, 0.07))[0]
    return shape(rng, distract, held_out, gaps)
