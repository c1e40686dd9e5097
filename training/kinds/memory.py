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
    return pick(rng, "names", held_out) if held_out or rng.random() < 0.5 else made_up(rng, rng.choice((1, 1, 2, 2, 3))).title()


def _from(key: str) -> Callable[[Random, bool], str]:
    def value(rng: Random, held_out: bool) -> str:
        return made_up(rng, rng.choice((1, 2, 2, 3))) if not held_out and rng.random() < 0.3 else pick(rng, key, held_out)

    return value


def _pet_name(rng: Random, held_out: bool) -> str:
    return made_up(rng, rng.choice((1, 2, 2))).title() if not held_out and rng.random() < 0.45 else pick(rng, "pet_names", held_out)


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
          ("What is my name?", "Do you know my name?", "Who am I?", "What am I called?", "Do you remember my name?", "What's my name?", "Tell me my name.", "Say my name.", "Remind me what my name is.",
           "How am I called?", "What do people call me?", "Which name did I give you?", "Have I told you my name?", "What was my name?",
           "My name is what?", "Do you still know who I am?", "Under which name do you know me?"),
          "Your name is {v}.", _name),
    Trait("favourite colour", ("My favourite colour is {v}.", "My favorite color is {v}.", "I like the colour {v} best.", "The colour I love most is {v}."),
          ("{v} is a fine colour. I will remember it.", "Noted: your favourite colour is {v}."),
          ("What is my favourite colour?", "What's my favorite color?", "Which colour do I like best?", "Do you remember my favourite colour?", "What colour do I like?", "Name the colour that I like most.",
           "My favourite colour is what?", "Which colour did I name?", "What colour is my favourite?", "Which color is my favorite?",
           "What is the colour that I like?", "Which colour pleases me most?"),
          "Your favourite colour is {v}.", _from("colours")),
    Trait("favourite food", ("My favourite food is {v}.", "I love {v}.", "I like to eat {v}.", "The food I like best is {v}."),
          ("{v}, good choice. I will remember it.", "Noted: you like {v}."),
          ("What is my favourite food?", "What do I like to eat?", "Which food do I like?", "Do you remember what I like to eat?", "What food do I love?", "Name the food that I like most.",
           "What should I eat, given what I like?", "Which food is my favourite?", "What is it that I like to eat?", "My favourite food is what?",
           "What dish do I like?", "Which food pleases me most?"),
          "Your favourite food is {v}.", _from("foods")),
    Trait("city", ("I live in {v}.", "I am from {v}.", "My home is in {v}.", "My city is {v}.", "I come from {v}."),
          ("{v}, noted.", "I will remember that you live in {v}."),
          ("Where do I live?", "Which city do I live in?", "Where am I from?", "What is my city?", "Do you remember where I live?", "In which city is my home?",
           "What city am I from?", "Which city am I in?", "Where is my home?", "What is the city I live in?", "Where do I come from?",
           "In what place do I live?"),
          "You live in {v}.", _city),
    Trait("job", ("I work as a {v}.", "My job is {v}.", "I am a {v} by profession.", "I earn my money as a {v}."),
          ("A {v}, noted.", "I will remember that you work as a {v}."),
          ("What is my job?", "What do I do for a living?", "What do I work as?", "Do you remember my job?", "What's my profession?", "Which job do I have?",
           "What is my profession?", "What work do I do?", "As what do I work?", "How do I earn my money?", "What do I do all day at work?",
           "Which profession did I name?"),
          "You work as a {v}.", _from("jobs")),
    Trait("hobby", ("My hobby is {v}.", "In my free time I like {v}.", "I enjoy {v}.", "My favourite pastime is {v}."),
          ("{v}, that sounds like fun.", "Noted: your hobby is {v}."),
          ("What is my hobby?", "What do I like to do?", "Which hobby do I have?", "Do you remember my hobby?", "What do I enjoy?", "How do I spend my free time?",
           "What do I do in my free time?", "What is my favourite pastime?", "How do I spend my spare time?", "What do I do for fun?",
           "What am I doing when I do not work?", "With what do I pass my free hours?"),
          "Your hobby is {v}.", _from("hobbies")),
    Trait("age", ("I am {v} years old.", "My age is {v}.", "I'm {v} years old.", "I turned {v} this year."),
          ("{v} years, noted.", "I will remember that you are {v} years old."),
          ("How old am I?", "What is my age?", "Do you remember my age?", "What's my age?", "Tell me how old I am.", "How many years old am I?",
           "My age is what?", "How old did I say I am?", "Do you know how old I am?", "What age am I?", "Which age did I tell you?",
           "How many years do I count?"),
          "You are {v} years old.", _number(5, 99)),
    Trait("lucky number", ("My lucky number is {v}.", "My favourite number is {v}.", "Remember the number {v}.", "The number is {v}."),
          ("{v}, noted.", "I will remember the number {v}."),
          ("What is my lucky number?", "Which number did I tell you?", "What was the number?", "Do you remember my number?", "What's my favourite number?", "Which number should you remember?",
           "Tell me the number.", "The number was what?", "What number did I say?", "Which number did I mention?",
           "Repeat the number that I told you.", "Which digits should you keep in mind?"),
          "The number is {v}.", _number(0, 9999)),
    Trait("code word", ("The code word is {v}.", "The password is {v}.", "Remember the word {v}.", "Our secret word is {v}.", "Keep this word in mind: {v}"),
          ("I will remember the word {v}.", "Noted: {v}."),
          ("What is the code word?", "What is the password?", "Which word did I ask you to remember?", "What's the secret word?", "What was the word?", "Tell me the word that you should remember.",
           "Say the word.", "What was the secret word?", "Which word is our secret?", "What word did I tell you?", "Do you know the password?",
           "Which secret did I give you?"),
          "The word is {v}.", _code),
    Trait("dog's name", ("My dog is called {v}.", "I have a dog named {v}.", "My dog's name is {v}.", "The name of my dog is {v}."),
          ("{v} is a good name for a dog.", "I will remember your dog {v}."),
          ("What is my dog called?", "What is the name of my dog?", "What's my dog's name?", "Do you remember my dog's name?", "How is my dog called?", "Which name does my dog have?",
           "What do I call my dog?", "My dog is called what?", "Name my dog.", "Tell me the name of my dog.", "Who is my dog?",
           "By which name does my dog go?"),
          "Your dog is called {v}.", _pet_name),
    Trait("cat's name", ("My cat is called {v}.", "I have a cat named {v}.", "My cat's name is {v}.", "The name of my cat is {v}."),
          ("{v} is a good name for a cat.", "I will remember your cat {v}."),
          ("What is my cat called?", "What is the name of my cat?", "What's my cat's name?", "Do you remember my cat's name?", "How is my cat called?", "Which name does my cat have?",
           "What do I call my cat?", "My cat is called what?", "Name my cat.", "Tell me the name of my cat.", "Who is my cat?",
           "By which name does my cat go?"),
          "Your cat is called {v}.", _pet_name),
    Trait("sister's name", ("My sister is called {v}.", "I have a sister named {v}.", "My sister's name is {v}.", "The name of my sister is {v}."),
          ("Say hello to {v} from me.", "I will remember your sister {v}."),
          ("What is my sister called?", "What is the name of my sister?", "What's my sister's name?", "Who is my sister?", "Do you remember my sister's name?", "Which name does my sister have?",
           "What do I call my sister?", "My sister is called what?", "Name my sister.", "Tell me the name of my sister.", "How is my sister called?",
           "By which name does my sister go?"),
          "Your sister is called {v}.", _name),
    Trait("brother's name", ("My brother is called {v}.", "I have a brother named {v}.", "My brother's name is {v}.", "The name of my brother is {v}."),
          ("Say hello to {v} from me.", "I will remember your brother {v}."),
          ("What is my brother called?", "What is the name of my brother?", "What's my brother's name?", "Who is my brother?", "Do you remember my brother's name?", "Which name does my brother have?",
           "What do I call my brother?", "My brother is called what?", "Name my brother.", "Tell me the name of my brother.",
           "How is my brother called?", "By which name does my brother go?"),
          "Your brother is called {v}.", _name),
    Trait("best friend's name", ("My best friend is {v}.", "My friend is called {v}.", "I have a friend named {v}.", "My best friend's name is {v}."),
          ("It is good to have a friend like {v}.", "I will remember your friend {v}."),
          ("Who is my best friend?", "What is my friend called?", "What's the name of my friend?", "Do you remember my friend?", "Who is my friend?", "Which name does my friend have?",
           "What is my best friend's name?", "My friend is called what?", "Name my friend.", "Tell me the name of my friend.",
           "How is my best friend called?", "By which name does my friend go?"),
          "Your friend is called {v}.", _name),
    Trait("meeting", ("My meeting is at {v}.", "I have a meeting at {v}.", "The meeting starts at {v}.", "Remember that I meet them at {v}."),
          ("I will remember the meeting at {v}.", "{v}, noted."),
          ("When is my meeting?", "At what time is my meeting?", "When does the meeting start?", "What time is my meeting?", "Do you remember when my meeting is?", "At which hour do I have the meeting?",
           "My meeting is when?", "What time do I have to be there for the meeting?", "When do I meet them?", "When must I be at the meeting?",
           "Tell me when the meeting is.", "At what hour does it start, my meeting?"),
          "Your meeting is at {v}.", _clock),
    Trait("birthday", ("My birthday is in {v}.", "I was born in {v}.", "My birthday month is {v}.", "I have my birthday in {v}."),
          ("{v}, a good month for a birthday.", "I will remember: your birthday is in {v}."),
          ("When is my birthday?", "In which month is my birthday?", "When was I born?", "What is my birthday month?", "Do you remember my birthday?", "Which month is my birthday in?",
           "My birthday is when?", "What month was I born in?", "In what month was I born?", "Tell me when my birthday is.",
           "When do I have my birthday?", "In which month do I get older?"),
          "Your birthday is in {v}.", lambda rng, held_out: rng.choice(MONTHS)),
    Trait("day off", ("My day off is {v}.", "I do not work on {v}.", "{v} is my free day.", "I am free on {v}."),
          ("{v}, noted.", "I will remember that you are free on {v}."),
          ("When is my day off?", "Which day am I free?", "On which day do I not work?", "What is my free day?", "Do you remember my day off?", "Which day of the week do I have off?",
           "My day off is when?", "When am I free?", "Which day do I not work?", "On what day am I free?", "Tell me my day off.",
           "Which weekday is my free one?"),
          "Your day off is {v}.", lambda rng, held_out: rng.choice(DAYS)),
)  # fmt: skip


GENERIC_ASKS = (
    "What is my {l}?", "What's my {l}?", "Do you remember my {l}?", "Do you know my {l}?", "What was my {l} again?", "Tell me my {l}.", "Can you tell me my {l}?",
    "I forgot my {l}. What is it?", "Remind me of my {l}.", "What did I say my {l} was?", "Which {l} did I tell you?", "My {l}, please.", "My {l}?",
    "Have I told you my {l}?", "Please tell me my {l}.", "So, what is my {l}?", "Could you remind me of my {l}?", "Say my {l}.", "And my {l}?",
)  # fmt: skip
GENERIC_TESTS = ("Can you recall my {l}?", "Let me test you: my {l}?", "I told you my {l} before. What was it?")
LEADS = ("By the way, ", "You should know: ", "Remember this: ", "Please remember: ", "Just so you know, ", "Fun fact: ", "For later: ", "Keep in mind: ", "Note: ")
TAILS = (" Please remember that.", " Remember that.", " Keep that in mind.", " I will ask you later.", " Don't forget it.", " Can you remember that?", " Ok?")


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
    return Exchange(_question(rng, trait, held_out), f"You have not told me your {trait.label} yet.", Terms(("not told",)))


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
    "What did I put on the list?", "My list, please.", "List what I told you.", "What do I have on my list?", "Which things are on my list?", "Print my list.",
    "What is my list?", "Do you remember my list?", "Say my list.", "Can you repeat the list?", "What did I ask you to keep in mind?", "What do I need?",
    "Which items did I give you?",
)  # fmt: skip


LIST_PLACES = (
    "What is the {o} thing on my list?", "What was the {o} one?", "The {o} item on the list?", "Which one is {o} on my list?", "What is {o} on my list?",
    "Name the {o} thing on the list.", "Which thing is the {o} one?", "Tell me the {o} item.", "What comes {o} on my list?",
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
        (f"Which entry of my list is {ORDINALS[at]}?" if held_out else rng.choice(LIST_PLACES).format(o=ORDINALS[at]),
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
            people[_name(rng, held_out)] = value
    pairs = list(people.items())
    told = [fact.format(n=n, v=v) for n, v in pairs]
    noted = rng.choice(("Noted.", "I will remember that.", "All right."))
    if rng.random() < 0.5:
        talk = [Exchange(" ".join(told), noted, Terms(()))]
    else:
        talk = [e for line in told for e in (Exchange(line, noted, Terms(())), *_between(rng, distract, gaps // 4))]
    talk += _between(rng, distract, gaps)
    rng.shuffle(pairs)
    for n, v in pairs[: rng.randint(1, 2)]:
        if rng.random() < 0.5:
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
    shape = rng.choices((thread, list_thread, relation_thread, say_back), (0.55, 0.17, 0.2, 0.08))[0]
    return shape(rng, distract, held_out, gaps)
