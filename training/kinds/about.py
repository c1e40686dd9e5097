"""Questions about minichat and its engine, with short follow-ups."""

from random import Random

from training.chat import Exchange
from training.check import Exact, Terms
from training.facts import Fact, all_facts
from training.phrasing import roughly, wrapped

MORE = (
    "Tell me more.",
    "More, please.",
    "Can you say more?",
    "Go on.",
    "More about that?",
    "And what else?",
    "More details?",
)
AGAIN = (
    "Say that again.",
    "Can you repeat that?",
    "Once more, please.",
    "Repeat your last answer.",
    "Pardon?",
    "Again?",
)
SHORTER = (
    "Shorter, please.",
    "Can you make that shorter?",
    "In one sentence?",
    "Too long.",
    "Just the first sentence.",
)
NO_MORE = "That is all I know about it. Ask me about another part of the engine."


def ask(rng: Random, fact: Fact, held_out: bool = False) -> Exchange:
    """One question for one fact; only training questions are wrapped and mistyped."""
    question = fact.ask(rng, held_out)
    if not held_out:
        question = roughly(rng, wrapped(rng, question))
    return Exchange(question, rng.choice(fact.say), Terms(fact.must))


def first_sentence(text: str) -> str:
    head = text.split("\n")[0]
    end = head.find(". ")
    return head if end < 0 else head[: end + 1]


def exchanges(rng: Random) -> list[Exchange]:
    """A question, and now and then a follow-up on its answer."""
    fact = rng.choice(all_facts())
    first = ask(rng, fact)
    draw = rng.random()
    if draw < (0.5 if fact.more else 0.05):
        more = fact.more or NO_MORE
        return [first, Exchange(roughly(rng, rng.choice(MORE)), more, Exact(more))]
    if draw > 0.96:
        return [first, Exchange(roughly(rng, rng.choice(AGAIN)), first.reply, Exact(first.reply))]
    if draw > 0.92:
        short = first_sentence(first.reply)
        return [first, Exchange(roughly(rng, rng.choice(SHORTER)), short, Exact(short))]
    return [first]


def cases(rng: Random, count: int) -> list[Exchange]:
    """Held-out questions, spread evenly over the facts."""
    facts = [fact for fact in all_facts() if fact.questions(True)]
    rng.shuffle(facts)
    return [ask(rng, facts[i % len(facts)], held_out=True) for i in range(count)]
