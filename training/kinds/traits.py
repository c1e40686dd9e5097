"""What a person may tell about themselves, and the ways to tell it and to ask for it."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from training.lexicon import DAYS, MONTHS, pick
from training.phrasing import made_up


@dataclass(frozen=True, slots=True)
class Trait:
    """One thing a person may tell: ways to tell it, ways to ask for it (the last one only in tests), the answer."""

    label: str
    tells: tuple[str, ...]
    hears: tuple[str, ...]
    asks: tuple[str, ...]
    answer: str
    value: Callable[[Random, bool], str]


def a_name(rng: Random, held_out: bool) -> str:
    return (
        pick(rng, "names", held_out)
        if held_out or rng.random() < 0.5
        else made_up(rng, rng.choice((1, 1, 2, 2, 3))).title()
    )


def _from(key: str) -> Callable[[Random, bool], str]:
    def value(rng: Random, held_out: bool) -> str:
        return (
            made_up(rng, rng.choice((1, 2, 2, 3)))
            if not held_out and rng.random() < 0.3
            else pick(rng, key, held_out)
        )

    return value


def _pet_name(rng: Random, held_out: bool) -> str:
    return (
        made_up(rng, rng.choice((1, 2, 2))).title()
        if not held_out and rng.random() < 0.45
        else pick(rng, "pet_names", held_out)
    )


def _number(low: int, high: int) -> Callable[[Random, bool], str]:
    return lambda rng, held_out: str(rng.randint(low, high))


def _code(rng: Random, held_out: bool) -> str:
    return (
        made_up(rng, 2) + str(rng.randint(0, 99)) if rng.random() < 0.3 else made_up(rng, rng.choice((2, 3)))
    )


def _clock(rng: Random, held_out: bool) -> str:
    return f"{rng.randint(1, 12)}:{rng.choice(('00', '15', '30', '45'))}"


def _city(rng: Random, held_out: bool) -> str:
    return made_up(rng).title() if not held_out and rng.random() < 0.2 else pick(rng, "cities", held_out)


TRAITS = (
    Trait("name", ("My name is {v}.", "I am {v}.", "I'm {v}.", "Call me {v}.", "Hi, I am {v}.", "Hello, my name is {v}.", "You can call me {v}.", "{v} is my name."),
          ("Nice to meet you, {v}!", "Hello {v}, nice to meet you!"),
          ("What is my name?", "Do you know my name?", "Who am I?", "What am I called?", "Do you remember my name?", "What's my name?", "Tell me my name.", "Say my name.", "Remind me what my name is.",
           "How am I called?", "What do people call me?", "Which name did I give you?", "Have I told you my name?", "What was my name?",
           "My name is what?", "Do you still know who I am?", "Under which name do you know me?"),
          "Your name is {v}.", a_name),
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
          "Your sister is called {v}.", a_name),
    Trait("brother's name", ("My brother is called {v}.", "I have a brother named {v}.", "My brother's name is {v}.", "The name of my brother is {v}."),
          ("Say hello to {v} from me.", "I will remember your brother {v}."),
          ("What is my brother called?", "What is the name of my brother?", "What's my brother's name?", "Who is my brother?", "Do you remember my brother's name?", "Which name does my brother have?",
           "What do I call my brother?", "My brother is called what?", "Name my brother.", "Tell me the name of my brother.",
           "How is my brother called?", "By which name does my brother go?"),
          "Your brother is called {v}.", a_name),
    Trait("best friend's name", ("My best friend is {v}.", "My friend is called {v}.", "I have a friend named {v}.", "My best friend's name is {v}."),
          ("It is good to have a friend like {v}.", "I will remember your friend {v}."),
          ("Who is my best friend?", "What is my friend called?", "What's the name of my friend?", "Do you remember my friend?", "Who is my friend?", "Which name does my friend have?",
           "What is my best friend's name?", "My friend is called what?", "Name my friend.", "Tell me the name of my friend.",
           "How is my best friend called?", "By which name does my friend go?"),
          "Your friend is called {v}.", a_name),
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
