"""Questions outside the model's knowledge, with an honest reply."""

from random import Random
from string import ascii_lowercase

from training import near
from training.chat import Exchange
from training.check import Honest
from training.facts import known_names
from training.kinds import cannot
from training.lexicon import pick
from training.phrasing import fill, made_up, other_words, phrase, reworded, roughly, wrapped

KNOW = "I don't know that. I am a tiny demo model: ask me about minichat and its engine, a small story or a simple sum."
NONSENSE = "I don't know what that means. I am a tiny demo model: ask me about minichat and its engine, or for a small story."
CAN = "I can't do that. I am a tiny demo model: I explain minichat and its engine, tell small stories and do simple sums."

PEOPLE = {
    False: (
        "Who is {x}?", "Who was {x}?", "Tell me about {x}.", "When was {x} born?", "Where was {x} born?", "What did {x} do?", "Why is {x} famous?",
        "How old is {x}?", "What do you think of {x}?", "Do you know {x}?", "When did {x} die?", "What is {x} known for?", "Is {x} still alive?",
        "What did {x} write?", "Where does {x} live?", "Who was the wife of {x}?", "What is the life story of {x}?", "Which year did {x} become famous?",
        "Give me a short biography of {x}.", "How tall is {x}?", "Is {x} rich?", "What would {x} say?", "Quote {x}.", "Have you met {x}?",
        "What happened to {x}?", "In which country was {x} at home?", "Name something that {x} made.", "Was {x} married?", "birthday of {x}", "age of {x}",
        "{x} age", "wife of {x}", "death of {x}", "quotes by {x}", "books by {x}", "life of {x}", "{x} biography", "height of {x}", "songs of {x}",
        "net worth of {x}", "children of {x}", "Did {x} have children?", "What language did {x} speak?", "Show me a picture of {x}.",
    ),
    True: (
        "What did people think of {x}?", "Where is the grave of {x}?", "Which prize did {x} win?",
    ),
}  # fmt: skip
PLACES = {
    False: (
        "What is the capital of {x}?", "Where is {x}?", "How many people live in {x}?", "What language do they speak in {x}?", "What is the weather in {x}?",
        "Who is the president of {x}?", "What is {x} famous for?", "How big is {x}?", "What is the currency of {x}?", "Tell me about {x}.",
        "How far is {x} from here?", "When is the best time to visit {x}?", "What can I see in {x}?", "What do people eat in {x}?", "Who rules {x}?",
        "Is {x} a nice place?", "What is the largest city in {x}?", "Who won the last election in {x}?", "Which river flows through {x}?",
        "How do I get to {x}?", "What time is it in {x}?", "Is it cold in {x}?", "When was {x} founded?", "What is the highest mountain in {x}?",
        "Name a famous person from {x}.", "Which countries border on {x}?", "Is {x} safe?", "Have you been to {x}?", "What does the flag of {x} look like?",
        "Is {x} an island?", "capital of {x}", "{x} capital", "population of {x}", "weather in {x}", "president of {x}", "flag of {x}", "currency of {x}",
        "{x} population", "people of {x}", "language of {x}", "map of {x}", "the capital of {x}", "capital city of {x}?", "best food in {x}", "size of {x}",
        "history of {x}", "king of {x}", "{x} weather", "time in {x}", "hotels in {x}", "flights to {x}", "distance to {x}",
    ),
    True: (
        "What do they grow in {x}?", "How old is the city of {x}?", "Which sea is near {x}?",
    ),
}  # fmt: skip
THINGS = {
    False: (
        "Who invented {x}?", "Who discovered {x}?", "When was {x} invented?", "What is the history of {x}?", "How much does {x} cost?", "How old is {x}?",
        "How big is {x}?", "Where does {x} come from?", "Do you like {x}?", "What do you think about {x}?", "What are the parts of {x}?",
        "Give me three facts about {x}.", "Is {x} dangerous?", "Who is the best at {x}?", "What color is {x}?", "How many kinds of {x} are there?",
        "Can you teach me {x}?", "Is {x} good for you?", "What is the origin of {x}?", "Which book should I read about {x}?", "What are the dangers of {x}?",
        "Where can I find {x}?", "How long does {x} last?", "Why do people like {x}?", "What is {x} made of?", "When did {x} begin?", "How heavy is {x}?",
        "Where can I see {x}?", "When did {x} end?", "How fast is {x}?", "Is {x} real?", "Who owns {x}?", "Can I eat {x}?", "Is {x} expensive?",
        "price of {x}", "inventor of {x}", "height of {x}", "age of {x}", "color of {x}", "the price of {x}?", "meaning of {x}", "history of {x}",
        "cost of {x}", "weight of {x}", "best {x}", "{x} price", "{x} near me", "types of {x}", "cheapest {x}", "where to buy {x}", "origin of {x}",
        "the best {x} in town", "facts about {x}", "pictures of {x}", "how to make {x}", "who made {x}", "size of {x}",
    ),
    True: (
        "Who was the first to study {x}?", "How long has there been {x}?", "What smells like {x}?",
    ),
}  # fmt: skip
TASKS = {
    False: (
        "{x}", "Please {x}.", "Can you {x}?", "Could you {x}?", "I want you to {x}.", "Would you {x}?", "{x} for me", "I need you to {x}.", "{x} please",
        "{x} now", "Help me {x}.", "Are you able to {x}?", "Go ahead and {x}.", "My task for you: {x}.", "Your task: {x}.", "Let us {x}.", "Do this: {x}.",
        "Would you be so kind as to {x}?", "I order you to {x}.", "Try to {x}.", "Next, {x}.", "You should {x}.", "Will you {x}?", "Do me a favor and {x}.",
        "Is it in your power to {x}?", "Kindly {x} for me.", "I wish you would {x}.", "You must {x}.", "How about you {x}?", "Why don't you {x}?",
        "{x} and tell me when it is done.", "I would be happy if you could {x}.", "I would be glad if you could {x}.", "It would be nice if you could {x}.", "It would help me if you could {x}.",
        "I would love it if you would {x}.", "I hope that you can {x}.", "Do you have time to {x}?", "Are you willing to {x}?", "Would you be able to {x}?", "I expect you to {x}.",
    ),
    True: (
        "Would it be possible for you to {x}?", "I count on you to {x}.", "Today you will {x}.",
    ),
}  # fmt: skip
OPINIONS = {
    False: (
        "What do you prefer, {x}?", "{x}?", "Which is better, {x}?", "Do you like {x}?", "{x}, what do you think?", "Choose: {x}.", "Your favorite: {x}?",
        "If you had to choose, {x}?", "Pick one: {x}.", "Would you rather have {x}?", "Which do you like more, {x}?", "Decide: {x}!",
        "What would you take, {x}?",
    ),
    True: (
        "Tell me your choice: {x}?", "What is nicer, {x}?",
    ),
}  # fmt: skip
LOOSE = (
    "What time is it?", "What day is it today?", "What year is it?", "What is the weather like?", "Will it rain tomorrow?",
    "Who won the game last night?", "What is in the news?", "What is the best phone?", "How do I get rich?", "How do I lose weight?",
    "Why is the sky blue?", "Why is grass green?", "How do birds fly?", "How far is the moon?", "What is the tallest mountain?",
    "What is the speed of light?", "How many bones do we have?", "Why do we dream?", "Is there a god?",
    "What happens when we die?", "Who wrote Hamlet?", "What is the longest river?", "When did the war end?", "Who was the first man on the moon?",
    "What should I eat tonight?", "What should I wear today?", "Where can I buy shoes?", "How do I fix my car?",
    "Should I sell my house?", "How do I ask for a raise?", "How do I make friends?",
    "Am I in love?", "What is your favorite film?", "What is your favorite color?", "Do you dream?", "Are you happy?", "How old are you?",
    "Where do you live?", "Do you have feelings?", "What did you do yesterday?", "Do you have a family?", "Are you married?",
    "What is the stock price today?", "How tall is the tower?", "What language is spoken on Mars?", "Who is the richest person?",
    "How do I cook rice?", "How long do I boil an egg?", "What rhymes with orange?",
    "What does bonjour mean?", "Who painted the ceiling?", "What is two to the power of one hundred?", "How many stars are there?",
    "What is the square root of two?", "What is the best car?", "Who is the best player?", "How do planes fly?", "What is the opposite of hot?", "Is water wet?",
    "What do cows eat?", "How do magnets work?", "Why is the sea salty?", "How does a clock work?", "What is a good name for a dog?", "Who is my neighbor?",
    "What did my mother say?", "Where are my glasses?", "What is behind the door?", "Who is on the phone?", "When does the train leave?", "Is the shop open?",
    "How much is the fish?", "What is the plot of that film?", "Which team won?", "How do you spell success in German?", "Is it going to snow?",
    "What is the meaning of the word love?", "How many people are on earth?", "What is the largest animal?", "Are there aliens?", "Who built the pyramids?",
    "How old is the universe?", "What is inside the sun?", "Can dogs see colors?", "How do I tie a tie?", "What is the best language to learn?",
    "Should I buy a house?", "How do I fall asleep?", "Is coffee healthy?", "How many calories does an apple have?",
    "Is 7 a prime number?", "Is it open source?", "What does it cost?", "How much do you cost?", "Is it free?", "What licence is it under?", "How do I update it?", "Who pays for this?",
    "What is ten percent of fifty?", "What is pi?", "How do I install Linux?", "How do I exit vim?", "What is the best laptop?",
    "Which programming language is best?", "Is Python better than Rust?", "What is my IP address?", "What is the wifi password?",
    "What is the best restaurant here?", "Who is the president?", "Who is the king?", "What is the capital?",
)  # fmt: skip
NUMBERED = {
    False: (
        "Who won the {c} in {y}?", "Who won the {c} of {y}?", "Which team won the {c} in {y}?", "Who lost the {c} in {y}?", "Where was the {c} of {y}?",
        "When is the {c} of {y}?", "Who was the winner of the {c} in {y}?", "What was the result of the {c} in {y}?", "How did the {c} of {y} end?",
        "Tell me who won the {c} in {y}.", "Who played in the {c} of {y}?", "What happened in {y}?", "What happened in the year {y}?", "Who was president in {y}?",
        "Who was the king in {y}?", "Who ruled {p} in {y}?", "How many people lived in {p} in {y}?", "Who was elected in {p} in {y}?", "What was new in {y}?",
        "What did {x} cost in {y}?", "How much was {x} in {y}?", "What is {n}% of {y}?", "{n} percent of {y}?", "How much is {n}% of {y}?", "What was the price of {x} in {y}?", "Is {n} dollars a good price for {x}?",
        "Can I buy {x} for {n} euros?", "How much is {n} euros in dollars?", "What is {n} pounds in euros?", "What can I buy for {n} dollars?",
        "How far is {n} miles?", "Who wears number {n}?", "Who is number {n} on the team?", "Where does bus {n} go?", "When does the {n} leave?",
        "What is on page {n} of the newspaper?", "Which film was the best of {y}?", "What was the best song of {y}?", "Which book came out in {y}?",
        "Who was born in {y}?", "Who died in {y}?", "What will happen in {y}?", "Will there be {x} in {y}?", "How was life in {y}?", "Was there a war in {y}?",
        "Why is {y} famous?", "What do you know about the year {y}?", "What is the population of {p} in {y}?", "Who scored {n} points in {y}?",
        "Which law was made in {y}?", "How warm was it in {p} in {y}?", "Which day was 1 May {y}?", "How high is {n} feet?", "Who lives at number {n}?",
        "How many medals did {p} win in {y}?", "Did {p} win the {c} in {y}?", "Who hosted the {c} in {y}?", "In {y}, who won the {c}?", "The {c} of {y}, who won it?",
    ),
    True: ("Name the winner of the {c} in {y}.", "Who came second at the {c} of {y}?", "How much did people pay for {x} in {y}?", "What was going on in {p} in {y}?"),
}  # fmt: skip
CONTESTS = (
    "world cup", "election", "olympics", "chess championship", "league", "final", "race", "championship", "tour", "lottery", "song contest", "super bowl",
    "derby", "marathon", "grand prix", "football match", "tennis open", "cup", "vote", "war", "gold medal", "presidential election", "nobel prize", "oscar",
)  # fmt: skip
KEYS = (
    *("F9", "F10", "F11", "F12", "Ctrl+B", "Ctrl+R", "Ctrl+T"),
    *("Alt+B", "Alt+J", "Alt+Q", "Alt+U", "Alt+V"),
)  # that are not bound


def _thing(rng: Random, held_out: bool) -> str:
    if rng.random() < 0.35:
        word = made_up(rng, rng.choice((2, 2, 3)))
        return (
            rng.choice(("a ", "the ", "", "", "", "a "))
            + word
            + rng.choice(("", "", "", "ing", "er", " " + made_up(rng)))
        )
    draw = rng.random()
    if draw < 0.3:
        return near.thing(rng, held_out)
    return pick(rng, "near" if draw < 0.5 else "things", held_out)


def _no_command(rng: Random) -> str:
    """An option or a command that does not exist."""
    word = made_up(rng, rng.choice((2, 2, 3)))
    return rng.choice((f"--{word}", f"--{word}-{made_up(rng)}", f"minichat {word}", f"the command {word}"))


def _numbered(rng: Random, side: bool, held_out: bool) -> str:
    """A question about the world with a year or a price, which is not a sum."""
    place = pick(rng, rng.choice(("countries", "cities")), held_out)
    number = rng.randint(2, rng.choice((99, 999, 9999)))
    year = rng.randint(1700, 2040) if rng.random() < 0.3 else rng.randint(1900, 2030)
    slots = {"c": rng.choice(CONTESTS), "y": year, "n": number, "p": place, "x": _thing(rng, held_out)}
    return fill(rng.choice(NUMBERED[side]), **{name: str(value) for name, value in slots.items()})


ROWS = (
    *(
        "asdfghjkl",
        "qwertyuiop",
        "zxcvbnm",
        "asdf",
        "jkl",
        "jkl;",
        "abcdefg",
        "xyz",
        "wasd",
        "qwertz",
        "fghj",
        "lkjh",
        "poiu",
        "hjkl",
    ),
    *("aaa", "foo", "bar"),
)
SIGNS = (
    "...",
    "..",
    "!!!",
    "#",
    "*",
    ";",
    "-",
    "--",
    "$",
    "/",
    "@",
    ":",
    "_",
    ",",
    "\\",
    "+",
    "&&",
    "%",
    "()",
    "{}",
    "[]",
    ";;",
    "~",
    "^",
    "=",
)


def nonsense(rng: Random) -> str:
    """Meaningless input: letters of a keyboard row, a repeated letter, random letters, or a symbol."""
    draw = rng.random()
    if draw < 0.4:
        row = rng.choice(ROWS)
        at = rng.randrange(len(row) - 2)
        return row[at : at + rng.randint(3, 9)] * rng.choice((1, 1, 1, 2, 3))
    if draw < 0.55:
        return rng.choice(ascii_lowercase) * rng.randint(3, 9)
    if draw < 0.9:
        return "".join(
            rng.choices(
                rng.choice(("asdfghjkl", "qwertyuiop", ascii_lowercase, "asdfjkl;")), k=rng.randint(3, 14)
            )
        )
    return rng.choice(SIGNS)


def _question(rng: Random, held_out: bool) -> tuple[str, str]:
    """A question outside the model's knowledge, with its reply."""
    side = held_out and rng.random() < 0.5
    draw = rng.random()
    if draw < 0.12:
        return _numbered(rng, side, held_out), KNOW
    if draw < 0.24:
        return near.question(rng, side, held_out), KNOW
    if not held_out and draw < 0.26:
        return phrase(rng, "command", False, x=_no_command(rng)), KNOW
    draw = rng.random()
    if not held_out and draw < 0.04:
        return nonsense(rng), NONSENSE
    if draw < 0.34:
        bank = rng.choice(
            ("what", "what", "what", "why", "how", "versus", "raise", "lower", "default", "key")
        )
        x = _thing(rng, held_out)
        if bank == "versus":
            return phrase(rng, bank, side, a=x, b=_thing(rng, held_out)), KNOW
        if bank == "key" and not held_out and rng.random() < 0.5:
            x = rng.choice(KEYS)
        return phrase(rng, bank, side, x=x), KNOW
    if draw < 0.48:
        return fill(rng.choice(THINGS[side]), x=_thing(rng, held_out)), KNOW
    if draw < 0.60:
        who = (
            pick(rng, "people", held_out)
            if rng.random() < 0.7
            else f"{made_up(rng).title()} {made_up(rng).title()}"
        )
        return fill(rng.choice(PEOPLE[side]), x=who), KNOW
    if draw < 0.72:
        where = (
            pick(rng, rng.choice(("countries", "cities")), held_out)
            if rng.random() < 0.8
            else made_up(rng).title()
        )
        return fill(rng.choice(PLACES[side]), x=where), KNOW
    if draw < 0.86:
        task = near.task(rng, held_out) if rng.random() < 0.4 else pick(rng, "tasks", held_out)
        if rng.random() < 0.3:
            task = (
                rng.choice(
                    ("write", "make", "build", "find", "fix", "draw", "buy", "send", "explain", "translate")
                )
                + " "
                + _thing(rng, held_out)
            )
        if not held_out and rng.random() < 0.2:
            return phrase(rng, "do", False, x=task), KNOW
        return fill(rng.choice(TASKS[side]), x=task), cannot.refusal(task) or CAN
    if draw < 0.91:
        return fill(rng.choice(OPINIONS[side]), x=pick(rng, "opinions", held_out)), KNOW
    return (fill("What is {x}?", x=_thing(rng, True)) if held_out else rng.choice(LOOSE)), KNOW


def exchanges(rng: Random, held_out: bool = False) -> list[Exchange]:
    question, reply = _question(rng, held_out)
    while question.strip(" ?.").lower() in known_names():
        question, reply = _question(rng, held_out)
    if not held_out and reply != NONSENSE:
        question = roughly(rng, wrapped(rng, reworded(rng, other_words(rng, question))))
    return [Exchange(question, reply, Honest())]
