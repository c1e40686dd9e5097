"""Replies without a model: random walks through a grammar, one token of the byte tokenizer at a time."""

import random
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from engine.api.params import Grammar, SamplingParams
from engine.api.request import Request
from engine.grammar.grammars import Grammars
from engine.text.tokenizer import Tokenizer
from tests.runner.letters import EOS, VOCAB, byte_tokenizer

MOST = 400
PROMPT = (1, 60, 61)


@cache
def tokenizer() -> Tokenizer:
    with TemporaryDirectory() as folder:
        byte_tokenizer().save(str(Path(folder) / "tokenizer.json"))
        return Tokenizer.load(Path(folder))


@cache
def grammars() -> Grammars:
    return Grammars(tokenizer(), VOCAB, frozenset({EOS}))


def request(grammar: Grammar | None, written: Iterable[int] = (), **params: object) -> Request:
    return Request(
        id=0,
        tokens=[*PROMPT, *written],
        prompt_len=len(PROMPT),
        params=SamplingParams(grammar=grammar, **params),
        seed=0,
        max_len=1000,
    )


def allowed(asked: Request) -> set[int]:
    bits = np.unpackbits(grammars().allowed(asked), bitorder="little")
    assert not bits[VOCAB:].any()
    return set(np.flatnonzero(bits).tolist())


def walk(grammar: Grammar, draw: random.Random, change_rate: float = 0.5) -> tuple[str, bool]:
    """Return a text of the grammar, and whether it is complete. `hurry`: the chance to close what is open."""
    asked = request(grammar)
    closing = {EOS, *(tokenizer().encode(each)[0] for each in '"}]')}
    while len(asked.tokens) < MOST:
        tokens = sorted(allowed(asked))
        assert tokens, "no token is allowed, not even an end"
        quick = [token for token in tokens if token in closing]
        token = draw.choice(quick if quick and draw.random() < change_rate else tokens)
        if token == EOS:
            break
        asked.tokens.append(token)
        asked.guide.read(asked.tokens)
        assert not asked.guide.error
        if asked.guide.over:
            break
    else:
        return text_of(asked), False
    return text_of(asked), True


def text_of(asked: Request) -> str:
    return b"".join(tokenizer().piece(token) for token in asked.tokens[len(PROMPT) :]).decode()
