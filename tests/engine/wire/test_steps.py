"""A step as bytes is complete: a fresh ledger that gets only the bytes samples the same tokens."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.errors import BadWire
from engine.api.params import Grammar, SamplingParams
from engine.execution.protocol import StepResult
from engine.kv.tables import BlockTables, TableDelta, TableMirror
from engine.kv.tiers.host import HostTier
from engine.kv.tiers.tier import TransferOrder
from engine.scheduling.step import (
    LAST,
    Drafts,
    PromptSpan,
    PromptTargets,
    Rows,
    SlotSampling,
    SlotTokens,
    Step,
    StepRow,
)
from engine.scheduling.step_bytes import Bounds, decode, encode
from engine.serving.engine import Engine
from tests.engine.ledger import LedgerRunner, LedgerSpace
from tests.engine.scheduling.test_company import Job, any_workload, run_workload
from tests.engine.workloads import Workload
from tests.examples import examples

BOUNDS = Bounds(slots=4, width=8, block_size=16, blocks=20, vocab=1000)
STEP = Step(
    number=7,
    rows=Rows.of(
        [
            StepRow(1, 0, 30, 1, True),
            StepRow(2, 3, 15, 1, True),
            StepRow(5, 1, 20, 3, True, 2),
            StepRow(9, 2, 0, 4, False),
        ]
    ),
    ids=np.array([LAST, 17, 20, 21, 22, 4, 5, 6, 7]),
    single=2,
    copies=((2, 19),),
    tables=TableDelta(np.array([0, 8, 31]), np.array([19, 0, 3], np.int32)),
    sampling=(
        SlotSampling(0, 12, SamplingParams(temperature=0.5, logit_bias={7: 1.5}, stop=("x",)), 2**64 - 1),
        SlotSampling(3, 2, SamplingParams(presence_penalty=1.0), 5, (1, 2, 3), True),
        SlotSampling(2, 9, SamplingParams(grammar=Grammar("regex", "a+")), 0),
    ),
    history=(SlotTokens(1, 4, (5, 6)),),
    guided=(1,),
    drafts={5: Drafts("ngram", 2, (21, 22), 11)},
    targets={9: PromptTargets(1, (5, 6), 3)},
    spans={9: PromptSpan(1, 3)},
)


def same(one: Step, other: Step) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        if name == "ids"
        else all(map(np.array_equal, one.tables, other.tables))
        if name == "tables"
        else getattr(one, name) == getattr(other, name)
        for name in Step._fields
    )


def test_a_step_round_trips_through_bytes() -> None:
    found = decode(encode(STEP), BOUNDS)
    assert same(found, STEP)
    assert not same(found, Step(7, STEP.rows, STEP.ids, 2)), "the comparison finds no difference"


def row(
    slot: int = 1, start: int = 0, length: int = 1, ids: tuple[int, ...] = (1,), **rest: Any
) -> dict[str, Any]:
    """Return the fields of a step with one row."""
    rows = Rows.of([StepRow(1, slot, start, length, True)])
    return {"rows": rows, "ids": np.array(ids), "single": int(length == 1), **rest}


def sampling(slot: int = 0, seed: int = 0, tokens: tuple[int, ...] = (), **params: Any) -> dict[str, Any]:
    return {"sampling": (SlotSampling(slot, 0, SamplingParams(**params), seed, tokens),)}


def cells(cell: int, block: int) -> dict[str, Any]:
    return {"tables": TableDelta(np.array([cell]), np.array([block], np.int32))}


TWICE = Rows.of([StepRow(1, 1, 0, 1, True), StepRow(2, 1, 0, 1, True)])
SAME = Rows.of([StepRow(1, 0, 0, 3, True, 2), StepRow(1, 1, 0, 2, True, 1)])
WRONG: dict[str, dict[str, Any]] = {
    "slot of 4": row(slot=4),
    "two rows in one slot": {"rows": TWICE, "ids": np.array([1, 2]), "single": 2},
    "two rows of one request": {
        "rows": SAME,
        "ids": np.array([1, 2, 3, 4, 5]),
        "drafts": {1: Drafts("ngram", 1, (5,), 0)},
    },
    "start of 128": row(start=128),
    "start of -1": row(start=-1),
    "end of a row of 129": row(start=127, length=2, ids=(1, 1)),
    "token of 1000": row(ids=(1000,)),
    "token of -1": row(length=2, ids=(1, LAST)),
    "2 tokens for rows of 3": row(length=3, ids=(1, 2)),
    "after longer ones": row(single=0),
    "block of a copy of -1": {"copies": ((-1, 0),)},
    "block of a copy of 20": {"copies": ((0, 20),)},
    "cell of the tables of 32": cells(32, 0),
    "block of the tables of 20": cells(0, 20),
    "guided row of 0": {"guided": (0,)},
    "slot that samples of 4": sampling(slot=4),
    "biased token of 1000": sampling(logit_bias={1000: 1.0}),
    "token with a log-probability of 1000": sampling(logprobs=0, logprob_token_ids=(1000,)),
    "token of a slot of 1000": sampling(tokens=(1000,)),
    "seed of 1": sampling(seed=2**64),
    "position of tokens of 128": {"history": (SlotTokens(0, 128, (1,)),)},
    "drafts for other rows": {"drafts": {3: Drafts("exit", 1, (), 0)}},
    "a span of request 3": row() | {"spans": {3: PromptSpan(0, 1)}},
    "length of a span of 0": row() | {"spans": {1: PromptSpan(0, 0)}},
    "start of a span of 1": row() | {"spans": {1: PromptSpan(1, 1)}},
}


@pytest.mark.parametrize("words", WRONG)
def test_a_step_out_of_bounds_is_refused(words: str) -> None:
    plain: dict[str, Any] = {"number": 0, "rows": Rows.of([]), "ids": np.zeros(0, np.int64)}
    with pytest.raises(BadWire, match=words):
        decode(encode(Step(**plain | WRONG[words])), BOUNDS)


@settings(max_examples=300)
@given(st.data())
def test_corrupt_bytes_are_refused_or_stay_within_bounds(data: st.DataObject) -> None:
    good = encode(STEP)
    at = data.draw(st.integers(0, len(good) - 1))
    how = data.draw(st.sampled_from(["cut", "flip", "insert"]))
    middle = data.draw(st.binary(min_size=1, max_size=9))
    broken = {
        "cut": good[:at],
        "flip": good[:at] + middle + good[at + len(middle) :],
        "insert": good[:at] + middle + good[at:],
    }[how]
    try:
        step = decode(broken, BOUNDS)
    except BadWire:
        return
    cells = LedgerSpace(BOUNDS.blocks, 0, BOUNDS.block_size).cells
    fresh = LedgerRunner(None, BlockTables(BOUNDS.slots, BOUNDS.width), cells)
    fresh.tables.apply(step.tables)
    assert int(fresh.tables.grid.max()) < BOUNDS.blocks


@examples(8)
@given(any_workload)
def test_replayed_steps_give_the_same_tokens(work: Workload[Job]) -> None:
    recorded: list[tuple[bytes | TransferOrder, StepResult | None]] = []

    def record(engine: Engine, at: int) -> None:
        if at == 0:
            runner, launch = engine.runner, engine.runner.launch

            def launch_recorded(step: Step) -> StepResult:
                recorded.append((encode(step), None))
                result = launch(step)
                recorded[-1] = recorded[-1][0], result
                return result

            def transfer_recorded(order: TransferOrder) -> None:
                recorded.append((order, None))
                transfer(order)

            transfer = runner.transfer
            runner.launch, runner.transfer = launch_recorded, transfer_recorded  # type: ignore[method-assign]
            ledgers.append(runner)  # type: ignore[arg-type]

    ledgers: list[LedgerRunner] = []
    run_workload(work, record)
    [ledger] = ledgers
    slots, width = ledger.tables.grid.shape
    blocks, host = len(ledger.cells), work.place.host
    bounds = Bounds(slots, width, ledger.size, blocks, ledger.alphabet)
    space = LedgerSpace(blocks, host, ledger.size)
    fresh = LedgerRunner(
        None, BlockTables(slots, width), space.cells, [HostTier(space)], groups=ledger.groups
    )
    fresh.alphabet = ledger.alphabet
    for data, then in recorded:
        if isinstance(data, TransferOrder):
            fresh.transfer(data)
            assert not any(end.error for end in fresh.transferred(wait=True))
            continue
        step = decode(data, bounds)
        if then is None:
            fresh.skip(step)
            continue
        now = fresh.launch(step)
        assert (now.tokens, now.runs) == (then.tokens, then.runs)
        if then.top_tokens is not None:
            assert now.top_tokens is not None and np.array_equal(now.top_tokens.ids, then.top_tokens.ids)


def test_unsent_table_cells_are_unique_and_cleared_once_sent() -> None:
    mirror, tables = TableMirror(3, 5), BlockTables(3, 5)
    for n in range(200):
        tables.write(n % 3, n % 4, [n, n + 1])
        mirror.apply(tables.take_changes())
    cells, blocks = mirror.unsent()
    assert len(np.unique(cells)) == len(cells) <= mirror.grid.size
    assert np.array_equal(mirror.grid.reshape(-1)[cells], blocks)
    assert np.array_equal(mirror.grid, tables.grid)
    mirror.sent()
    assert not len(mirror.unsent().cells) and not len(tables.take_changes().cells)
