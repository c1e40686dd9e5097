"""A row with drafts as the rows it amounts to: one token each, in one slot, each a place further on.

Keys are written before any row attends, so each of them sees the drafts before it. Being ordinary decode
rows, they are computed as they would be one step after another, on a CPU to the last bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from engine.scheduling.plan import Drafts, Plan, Row
from engine.speculation.verify import run_of


def unrolled(plan: Plan) -> Plan:
    """Every draft as a row of its own; those of one request stand together."""
    first = plan.single
    last = first + len(plan.drafts)  # they come after the rows of one token
    rows = [
        Row(row.request, row.slot, at, 1, True)
        for row in plan.rows[first:last]
        for at in range(row.start, row.start + row.length)
    ]
    return replace(plan, rows=(*plan.rows[:first], *rows, *plan.rows[last:]), single=first + len(rows))


def rolled(
    tokens: list[int], rows: Sequence[Row], drafts: Mapping[int, Drafts]
) -> tuple[list[int], dict[int, list[int]]]:
    """Of what the unrolled rows have drawn, a token for each row of the plan; and the runs."""
    if not drafts:
        return tokens, {}
    firsts, runs, at = [], {}, 0
    while at < len(rows):
        firsts.append(tokens[at])
        width = 1
        if (guessed := drafts.get(rows[at].request)) is not None:
            width += guessed.length
            runs[rows[at].request] = run_of(tokens[at : at + width], guessed.tokens)
        at += width
    return firsts, runs


def ahead(rows: Sequence[Row], drafts: Mapping[int, Drafts]) -> list[tuple[int, int]]:
    """Which drafts stand before each unrolled row, as (row, token): penalties count them as if said."""
    found, before = [], 0
    for at, row in enumerate(rows):
        guessed = drafts.get(row.request)
        before = before + 1 if guessed is not None and at and rows[at - 1].request == row.request else 0
        found += [(at, token) for token in guessed.tokens[:before]] if guessed else []
    return found
