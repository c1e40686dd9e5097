"""Questions about minichat and its engine, with short follow-ups."""

import re
from functools import cache
from random import Random

from training.chat import Exchange
from training.check import Exact, Terms
from training.facts import Fact, all_facts, any_fact, asked_about
from training.phrasing import other_words, reworded, roughly, wrapped

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
THEN = {
    "why": ("Why?", "And why?", "What is it good for?", "Why do we need it?", "What is it for?", "Why is that useful?", "What does it bring?", "But why?"),
    "how": ("How?", "And how?", "How does it work?", "How does that work?", "How is it done?", "And how does it work?", "How is that done?"),
    "raise": ("What if I raise it?", "And if it is higher?", "What does a higher value do?", "Should I raise it?", "And a higher one?"),
    "lower": ("What if I lower it?", "And if it is lower?", "What does a lower value do?", "Should I lower it?", "And a lower one?"),
    "default": ("What is the default?", "What is it by default?", "And by default?", "Which value is the default?", "How is it set?"),
    "use": ("How do I turn it on?", "How do I use it?", "How do I change it?", "Where do I set it?", "How do I turn it off?", "How can I use that?", "Where do I find it?", "How do I get it?", "Can I change it?", "Which key is it?", "How do I try it?", "And how do I turn that on?", "How do I do that?", "Where can I change that?"),
}  # fmt: skip
TWO = 0.05
USE = {
    **dict.fromkeys(
        ("temperature", "top-k", "top-p", "min-p", "greedy", "sampling", "repetition-penalty"), "f3"
    ),
    **dict.fromkeys(("prefix-cache", "chunked-prefill", "overlap", "cuda-graph"), "ablation"),
    **dict.fromkeys(("speculation", "ngram", "suffix", "early-exit", "draft-model"), "speculate-cli"),
    **dict.fromkeys(("quantization", "int8", "int4", "fp8", "nf4"), "f4"),
    "beam-search": "beams-cli",
    "grammar": "json-schema",
    "kv-map": "f2",
    "system-prompt": "system-key",
    "fork": "fork-key",
    "preemption": "preempt-key",
}  # the subject of a fact, and the fact about what it is used with
NO_MORE = "That is all I know about it. Ask me about another part of the engine."


def ask(rng: Random, fact: Fact, held_out: bool = False) -> Exchange:
    """A question for one fact; only training questions are wrapped and mistyped."""
    question = fact.ask(rng, held_out)
    if not held_out:
        letters = any(len(x) == 1 for _, x in fact.slots)  # a key such as a is no article
        question = _typed(
            rng, wrapped(rng, question if letters else reworded(rng, _other_words(rng, question, fact)))
        )
    return Exchange(question, rng.choice(fact.say), fact.check)


def _other_words(rng: Random, question: str, fact: Fact) -> str:
    """The question with rarer words, but the name of the thing that it asks for stays."""
    low = question.lower()
    known = (re.sub("^(a|an|the) ", "", x.lower()) for bank, x in fact.slots if bank != "do")
    names = [x for x in known if x in low]
    if not names:
        return other_words(rng, question)
    name = max(names, key=len)
    at = low.index(name)
    end = at + len(name)
    return other_words(rng, question[:at]) + question[at:end] + other_words(rng, question[end:])


def _typed(rng: Random, question: str) -> str:
    """The text as users type it; P remains P, because p is another key."""
    rough = roughly(rng, question)
    keys = re.findall(r"\b[B-HJ-Z]\b", question)
    return rough if all(re.search(rf"\b{key}\b", rough) for key in keys) else question


def first_sentence(text: str) -> str:
    head = text.split("\n")[0]
    end = head.find(". ")
    return head if end < 0 else head[: end + 1]


@cache
def followers(fact: Fact) -> list[tuple[str, Fact]]:
    """Follow-up questions about the thing that this fact defines, without naming it again."""
    things = {x.lower() for bank, x in fact.slots if bank == "what"}
    found = [(bank, asked_about(bank, things)) for bank in THEN]
    found.append(("use", next((other for other in all_facts() if other.id == USE.get(fact.id)), None)))
    return [(bank, other) for bank, other in found if other is not None and other is not fact]


def then(rng: Random, bank: str, fact: Fact) -> Exchange:
    return Exchange(roughly(rng, rng.choice(THEN[bank])), rng.choice(fact.say), fact.check)


BETWEEN = (
    " and ",
    " and ",
    ", and ",
    "? And ",
    "? ",
    "? Also, ",
    " and also ",
    " and then, ",
    "?\n",
    "? And then: ",
    "; ",
)


def both(rng: Random) -> Exchange:
    """Two questions in one message, answered in order."""
    first, second = rng.sample(all_facts(), 2)
    asked = [fact.ask(rng, held_out=False) for fact in (first, second)]
    between = rng.choice(BETWEEN)
    head, tail = asked[0].rstrip("?.! "), asked[1]
    if not between.endswith(("? ", "\n")):
        tail = tail[0].lower() + tail[1:]
    reply = f"{rng.choice(first.say)}\n\n{rng.choice(second.say)}"
    return Exchange(roughly(rng, head + between + tail), reply, Terms((*first.must, *second.must)))


def exchanges(rng: Random) -> list[Exchange]:
    """A question, sometimes with a follow-up on its answer, or two at once."""
    if rng.random() < TWO:
        return [both(rng)]
    fact = any_fact(rng)
    first = ask(rng, fact)
    if (others := followers(fact)) and rng.random() < 0.3:
        return [first, *(then(rng, *each) for each in rng.sample(others, rng.randint(1, len(others))))]
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
