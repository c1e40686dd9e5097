"""A step under construction: its rows as numbers and as a list, and rows that are dropped again."""

import numpy as np

from engine.api.params import SamplingParams
from engine.api.request import Adapter, Request
from engine.scheduling.building import StepBuilder
from engine.scheduling.step import LAST, Rows, Step, StepRow


def request(id: int, adapter: int = 0, skipped: int = 0) -> Request:
    found = Request(id, [1, 2, 3], 2, SamplingParams(), 0, 9, adapter=Adapter("", adapter, b""))
    found.slot, found.skipped = 10 + id, skipped
    return found


def built(*decodes: Request, drop: int | None = None) -> Step:
    builder = StepBuilder(budget=9)
    builder.add(StepRow(7, 17, 0, 3, samples=False), [4, 5, 6])
    for each in decodes:
        builder.decode(each, 2, LAST if each.id == 1 else each.id)
    if drop is not None:
        builder.drop(drop)
    return builder.build(0, Step(0, Rows.of([]), np.zeros(0)).tables)


def test_rows_of_one_token_are_first() -> None:
    step = built(request(1), request(2, skipped=16), request(3))
    assert [row.request for row in step.rows] == [1, 2, 3, 7]
    assert step.ids.tolist() == [LAST, 2, 3, 4, 5, 6]
    assert step.single == 3


def test_rows_list_what_their_numbers_say() -> None:
    step = built(request(1), request(2, adapter=5, skipped=16))
    assert list(step.rows) == list(Rows(step.rows.numbers))
    assert step.rows[1] == StepRow(2, 12, 2, 1, True, 0, 16, 5)


def test_a_dropped_row_leaves_nothing() -> None:
    whole, dropped = (
        built(request(1), request(3)),
        built(request(1), request(2, adapter=5), request(3), drop=2),
    )
    assert dropped.rows == whole.rows
    assert dropped.ids.tolist() == whole.ids.tolist()
    assert not dropped.rows.rare


def test_rows_that_sample() -> None:
    step = built(request(1), request(2))
    assert [row.request for row in step.rows.sampling] == [1, 2]
    only = built(request(1), request(2), drop=7)
    assert only.rows.sampling is only.rows
