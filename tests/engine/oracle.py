"""What the ledger's replies must be, computed without an engine."""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from engine.kv.eviction import TokenBudget
from engine.kv.window import Window

VOCAB = 1000


def next_token(tokens: Sequence[int], seed: int) -> int:
    """Return the token that follows these tokens. It depends on every one of them, and on the seed."""
    digest = blake2b(np.asarray([seed % 2**63, *tokens], np.int64).tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % VOCAB


def alone(
    prompt: Sequence[int],
    count: int,
    seed: int = 0,
    alphabet: int = VOCAB,
    window: Window | None = None,
    budget: TokenBudget | None = None,
) -> list[int]:
    """The oracle: return the reply to a prompt without using an engine."""
    tokens = list(prompt)
    if budget is not None:
        return with_budget(tokens, count, seed, alphabet, budget)
    for _ in range(count):
        tokens.append(next_token([tokens[at] for at in visible(len(tokens), window)], seed) % alphabet)
    return tokens[len(prompt) :]


def with_budget(tokens: list[int], count: int, seed: int, alphabet: int, budget: TokenBudget) -> list[int]:
    """The oracle with a budget: read token by token, with a list of the positions that are still held."""
    size = budget.block_size
    most, piece, sinks = budget.tokens // size, max(1, budget.tokens // size // 4), -(-budget.sinks // size)
    recent = max(1, (most - piece - sinks) // 2)
    end, seen = len(tokens) + count, list[int]()
    scores: dict[int, int] = {}  # by block
    for at in range(end):
        if at == len(tokens):
            tokens.append(next_token([tokens[each] for each in seen], seed) % alphabet)
        if len(seen) == most * size:
            middle = list(scores)[sinks : len(scores) - recent]
            for block in sorted(middle, key=lambda each: scores[each])[:piece]:
                del scores[block]
            seen = [each for each in seen if each // size in scores]
        seen.append(at)
        if (at + 1) % size == 0:
            scores[at // size] = 0
            found = block_scores([tokens[each] for each in seen], size)
            for block, score in zip(scores, found, strict=True):
                scores[block] += score
    return tokens[end - count :]


def block_scores(tokens: Sequence[int], size: int) -> list[int]:
    """What a full block adds to the scores of the blocks held, of which it is the last."""
    return [next_token(tokens, at) % 7 for at in range(len(tokens) // size)]


def most_likely_tokens(tokens: Sequence[int], seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the `count` likeliest next tokens with their log-probabilities, as for beams."""
    draw = np.random.default_rng([seed, next_token(tokens, seed), len(tokens)])
    return draw.choice(VOCAB, count, replace=False), -np.sort(draw.exponential(1, count)).astype(np.float32)


def visible(length: int, window: Window | None) -> list[int]:
    """Return the positions that the last of `length` tokens attends to."""
    oldest = 0 if window is None else max(0, length - window.size)
    return [*range(min(window.sinks, oldest) if window else 0), *range(oldest, length)]
