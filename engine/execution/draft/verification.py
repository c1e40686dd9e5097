"""Unrolls a row with drafts into rows of one token each, in one slot, at successive positions.

Keys are written before any row attends, so each row sees the drafts before it. As ordinary decode rows,
they give the same results as separate steps, bit for bit on a CPU.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from engine.scheduling.step import Drafts, Rows, StepRow
from engine.speculation.verify import run_of


def unroll_drafts(rows: Rows, single: int) -> tuple[Rows, int]:
    """Unroll each draft into a row. Returns the rows and the number with one token; ids do not change."""
    numbers, counts = rows.numbers, np.where(rows.drafted > 0, rows.lengths, 1)
    starts = np.cumsum(counts) - counts
    wide = np.repeat(numbers, counts, axis=0)
    drafted = wide[:, 5] > 0
    wide[drafted, 2] += (np.arange(len(wide)) - np.repeat(starts, counts))[drafted]
    wide[drafted, 3:6] = 1, 1, 0
    return Rows(wide), single + int(drafted.sum())


def group_runs(
    tokens: list[int], rows: Sequence[StepRow], drafts: Mapping[int, Drafts]
) -> tuple[list[int], dict[int, list[int]]]:
    """Group the tokens of unrolled rows: the first token of each row of the step, and the runs."""
    if not drafts:
        return tokens, {}
    requests, firsts, runs, at = [row.request for row in rows], [], {}, 0
    while at < len(requests):
        firsts.append(tokens[at])
        width = 1
        if (guessed := drafts.get(requests[at])) is not None:
            width += guessed.length
            runs[requests[at]] = run_of(tokens[at : at + width], guessed.tokens)
        at += width
    return firsts, runs


def tokens_ahead(rows: Sequence[StepRow], drafts: Mapping[int, Drafts]) -> list[tuple[int, int]]:
    """The drafts that precede each unrolled row, as (row, token): penalties count them as text."""
    requests = [row.request for row in rows]
    found, before = [], 0
    for at, request in enumerate(requests):
        guessed = drafts.get(request)
        before = before + 1 if guessed is not None and at and requests[at - 1] == request else 0
        found += [(at, token) for token in guessed.tokens[:before]] if guessed else []
    return found
