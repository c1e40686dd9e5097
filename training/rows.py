"""Conversations packed into rows of one length, by several processes."""

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random

import numpy as np
from tokenizers import Tokenizer

from training.chat import PAD, encode, token_id
from training.mix import conversation

OPEN_ROWS = 24  # open rows; more of them leave fewer gaps


@dataclass(frozen=True, slots=True)
class Order:
    """The parameters of one part: its seed, the number and width of its rows, and the test questions to exclude."""

    seed: int
    rows: int
    width: int
    tokenizer: str
    forbidden: frozenset[str]


def pack(items: Iterable[list[int]], rows: int, width: int, pad: int) -> np.ndarray:
    """The first `rows` rows that fill up, each item within one row. Longer items are truncated."""
    done: list[list[int]] = []
    waiting: list[list[int]] = []
    for item in items:
        item = item[:width]
        fitting = [row for row in waiting if len(row) + len(item) <= width]
        if fitting:
            max(fitting, key=len).extend(item)
        else:
            waiting.append(list(item))
        if len(waiting) > OPEN_ROWS:
            waiting.sort(key=len)
            done.append(waiting.pop())
            if len(done) == rows:
                break
    done += sorted(waiting, key=len, reverse=True)[: rows - len(done)]
    out = np.full((len(done), width), pad, dtype=np.uint16)
    for to, row in zip(out, done, strict=True):
        to[: len(row)] = row
    return out


def _fill(order: Order) -> np.ndarray:
    tokenizer = Tokenizer.from_file(order.tokenizer)
    rng = Random(order.seed)
    endless = iter(lambda: encode(conversation(rng, order.forbidden), tokenizer), None)
    return pack(endless, order.rows, order.width, token_id(tokenizer, PAD))


def make_rows(
    count: int, width: int, tokenizer: Path, forbidden: frozenset[str], seed: int, workers: int
) -> np.ndarray:
    """`count` rows; the result depends on the number of parts, not on the number of processes."""
    parts = max(1, min(4 * workers, count // 8))
    sizes = [count // parts + (i < count % parts) for i in range(parts)]
    orders = [Order(seed * 1000 + i, n, width, str(tokenizer), forbidden) for i, n in enumerate(sizes)]
    if workers == 1:
        return np.concatenate([_fill(order) for order in orders])
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return np.concatenate(list(pool.map(_fill, orders)))
