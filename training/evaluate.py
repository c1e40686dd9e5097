"""Held-out figures: right answers by kind and decoding method, loss by kind, agreement of exits and draft."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.chat import END_TURN, PAD, START, Chat, Exchange, encode, render, token_id
from training.check import Check, parse_json
from training.decode import How, replies
from training.kinds import (
    about,
    cannot,
    care,
    files,
    instructions,
    json_of,
    languages,
    lists,
    manners,
    memory,
    numbers,
    stories,
    unknown,
    wishes,
)
from training.mix import small_talk
from training.model import Decoder
from training.newcomers import for_each_fact, newcomers
from training.phrasing import normal
from training.rows import pack
from training.train import IGNORE, attend, unpack

WAYS = {"greedy": How(), "top-p": How(temperature=0.7, top_p=0.95), "beam 4": How(beams=4)}


@dataclass(frozen=True, slots=True)
class Case:
    """A chat that ends with a held-out question, and the check for its reply."""

    kind: str
    before: tuple[Exchange, ...]
    question: Exchange

    def prompt(self) -> str:
        return render([*Chat(self.kind, self.before).turns(), ("user", self.question.user)], ask=True)

    @property
    def check(self) -> Check:
        return self.question.check


def make_cases(count: int, seed: int) -> list[Case]:
    """`count` cases per kind, twice as many about minichat, and the fixed lists of questions."""
    rng = Random(seed)
    alone: dict[str, Callable[[], Exchange]] = {
        "instructions": lambda: instructions.exchanges(rng, held_out=True)[0],
        "reworded": lambda: instructions.reworded(rng),
        "json": lambda: json_of.exchange(rng, held_out=True),
        "numbers": lambda: numbers.exchanges(rng, held_out=True)[0],
        "unknown": lambda: unknown.exchanges(rng, held_out=True)[0],
        "manners": lambda: manners.exchanges(rng, held_out=True)[0],
        "files": lambda: files.exchanges(rng, held_out=True)[0],
        "wishes": lambda: wishes.exchanges(rng, held_out=True)[0],
        "care": lambda: care.exchanges(rng, held_out=True)[0],
        "cannot": lambda: cannot.exchanges(rng, held_out=True)[0],
        "languages": lambda: languages.exchanges(rng, held_out=True)[0],
        "lists": lambda: lists.exchanges(rng, held_out=True)[0],
        "ordinary": lambda: care.ordinary(rng, held_out=True)[0],
    }
    cases = [Case("about", (), e) for e in about.cases(rng, 2 * count)]
    cases += [Case("stories", (), e) for e in stories.cases(rng, count)]
    cases += [Case(kind, (), make()) for kind, make in alone.items() for _ in range(count)]
    cases += [Case("newcomers", (), e) for _, e in newcomers()]
    cases += [Case("asked", (), e) for e in for_each_fact()]
    for name, asked in care.in_few_words().items():
        cases += [Case("calm" if name == "calm" else "distress", (), e) for e in asked]
    return cases + [_recall(rng) for _ in range(count)]


def _recall(rng: Random) -> Case:
    """A statement, other messages, and one question about the statement."""
    between: set[int] = set()

    def distract(rng: Random) -> list[Exchange]:
        talk = small_talk(rng)
        held.extend(talk)
        between.update(id(e) for e in talk)
        return talk

    while True:
        held: list[Exchange] = []
        talk = memory.exchanges(rng, distract, held_out=True, gaps=rng.choice((0, 2, 4, 8)))
        last = max(i for i, e in enumerate(talk) if id(e) not in between)
        if sum(len(e.user) + len(e.reply) + 40 for e in talk) < 5000:
            return Case("recall", tuple(talk[:last]), talk[last])


def test_questions(cases: list[Case]) -> frozenset[str]:
    """The questions that must not be in training chats."""
    return frozenset(normal(case.question.user) for case in cases) - {""}


def answer(model: Decoder, tokenizer: Tokenizer, prompts: list[str], how: How, most: int) -> list[str]:
    """The model's replies to rendered prompts."""
    ids = [tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in prompts]
    return tokenizer.decode_batch(replies(model, ids, most, token_id(tokenizer, END_TURN), how))


@dataclass(frozen=True, slots=True)
class Score:
    """The number of right replies of a kind, and some of the wrong ones."""

    right: int
    asked: int
    parsed: int
    wrong: tuple[tuple[str, str], ...]

    @property
    def share(self) -> float:
        return self.right / max(self.asked, 1)


def score(model: Decoder, tokenizer: Tokenizer, cases: list[Case], how: How, most: int) -> dict[str, Score]:
    """Right answers by kind; one kind at a time, because a batch takes as long as its longest reply."""
    by_kind: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_kind[case.kind].append(case)
    found = {}
    for kind, asked in by_kind.items():
        replied = answer(model, tokenizer, [case.prompt() for case in asked], how, most)
        wrong = [
            (case.question.user, reply)
            for case, reply in zip(asked, replied, strict=True)
            if not case.check.right(reply)
        ]
        parsed = sum(parse_json(reply) is not None for reply in replied)
        found[kind] = Score(len(asked) - len(wrong), len(asked), parsed, tuple(wrong))
    return found


@dataclass(frozen=True, slots=True)
class Likeness:
    """The final loss, and how often the argmax of the exits and of the draft is that of the whole model."""

    loss: float
    exits: dict[int, float]
    draft: float


@torch.inference_mode()
def likeness(
    model: Decoder, draft: Decoder, tokenizer: Tokenizer, cases: list[Case], rows: int
) -> dict[str, Likeness]:
    """Over the reference replies of the held-out cases, by kind."""
    device = model.model.embed_tokens.weight.device
    start, pad = token_id(tokenizer, START), token_id(tokenizer, PAD)
    by_kind: dict[str, list[list[int]]] = defaultdict(list)
    for case in cases:
        if not case.question.reply:
            continue  # a fixed list without references
        by_kind[case.kind].append(encode(Chat(case.kind, (*case.before, case.question)), tokenizer))
    found = {}
    for kind, items in by_kind.items():
        packed = pack(iter(items), rows, model.shape.context + 1, pad)
        found[kind] = _compare(model, draft, torch.from_numpy(packed.astype(np.int32)).to(device), start)
    return found


def _compare(model: Decoder, draft: Decoder, rows: Tensor, start: int) -> Likeness:
    batch = unpack(rows, start, dense=True)
    learned = batch.targets != IGNORE
    with torch.autocast(rows.device.type, torch.bfloat16, enabled=rows.is_cuda):
        hidden = model.hidden(batch.tokens, batch.positions, attend(batch.mask))
        logits = {e: model.logits(h[learned]).float() for e, h in hidden.items()}
        drafted = draft(batch.tokens, batch.positions, attend(batch.mask))[learned]
    whole = logits.pop(model.shape.layers)
    loss = torch.nn.functional.cross_entropy(whole, batch.targets[learned]).item()
    best = whole.argmax(-1)
    exits = {e: (x.argmax(-1) == best).float().mean().item() for e, x in logits.items()}
    return Likeness(loss, exits, (drafted.argmax(-1) == best).float().mean().item())
