"""Plain text, so that a completion without a chat template reads well."""

from random import Random

from training.chat import Passage
from training.facts import all_facts
from training.kinds.about import first_sentence
from training.kinds.numbers import spell
from training.kinds.stories import cast, tell

ROOMS = {
    "cache": "The KV cache", "scheduling": "Scheduling", "decoding": "Decoding", "screen": "The screen", "program": "Commands and storage",
    "quantization": "Quantization", "model": "The model", "keys": "Keys", "options": "Defaults and options", "serving": "The server",
}  # fmt: skip


def _page(rng: Random) -> str:
    """Some facts of one subject, as a page with a heading."""
    room = rng.choice(list(ROOMS))
    facts = rng.sample([f for f in all_facts() if f.room == room], rng.randint(2, 6))
    head = rng.choice((f"# {ROOMS[room]}\n\n", f"## {ROOMS[room]}\n\n", ""))
    return head + "\n\n".join(rng.choice(fact.say) for fact in facts)


def _notes(rng: Random) -> str:
    facts = rng.sample(all_facts(), rng.randint(3, 8))
    return "Notes on minichat:\n\n" + "\n".join(
        f"- {first_sentence(fact.say[0])}" for fact in facts if "\n" not in fact.say[0]
    )


def _table(rng: Random) -> str:
    a = rng.randint(1, 12)
    return rng.choice((
        "\n".join(f"{a} x {b} = {a * b}" for b in range(1, 13)),
        ", ".join(str(n) for n in range(a, a + rng.randint(10, 30))),
        "\n".join(f"{n}: {spell(n)}" for n in range(a * 10, a * 10 + rng.randint(5, 15))),
        "\n".join(f"{n} + {b} = {n + b}" for n, b in ((rng.randint(0, 99), rng.randint(0, 99)) for _ in range(10))),
    ))  # fmt: skip


def _excerpt(rng: Random) -> str:
    """Some stories, perhaps from the middle of the first one on: what a model reads when only text is given to it."""
    text = "\n\n".join(tell(rng, cast(rng)) for _ in range(rng.randint(1, 5)))
    at = rng.randrange(len(text) // 2) if rng.random() < 0.4 else 0
    return text[at:]


def passage(rng: Random) -> Passage:
    draw = rng.random()
    if draw < 0.3:
        return Passage("plain", _excerpt(rng), whole=False)
    if draw < 0.62:
        stories = [tell(rng, cast(rng)) for _ in range(rng.choice((1, 1, 2)))]
        return Passage("plain", "\n\n".join(stories))
    if draw < 0.84:
        return Passage("plain", _page(rng))
    return Passage("plain", _notes(rng) if draw < 0.92 else _table(rng))
