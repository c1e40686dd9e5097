"""From blocks to cells, against a plain block-by-block computation."""

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.api.snapshot import BlockView, Snapshot
from engine.fleet.fleet import NUMBERS
from minichat.ui.monitor.cells import (
    BRIGHT,
    RAMP,
    Grid,
    Order,
    State,
    Tint,
    aggregate,
    session_order,
    states,
)
from minichat.ui.monitor.owners import UNKNOWN, Codes, Owner
from tests.widgets.monitor.snapshots import BLOCK, snapshot

STEP = 5000
Block = tuple[int, int, int, int, int]  # references, owner, tokens, last use, copy to or from a tier
copies = st.integers(0, 4)
block: st.SearchStrategy[Block] = st.one_of(
    st.just((0, -1, 0, 0, 0)),
    st.tuples(st.just(0), st.integers(0, 9), st.just(BLOCK), st.integers(0, STEP), copies),
    st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, BLOCK), st.integers(0, STEP), copies),
)


def shot_of(blocks: list[Block]) -> Snapshot:
    refs, owner, filled, used_at, moved = (np.array(column, np.int64) for column in zip(*blocks, strict=True))
    held = int((refs > 0).sum())
    view = BlockView(len(blocks), refs, owner, filled, used_at, held, 0, 0, moved=moved.astype(np.int8))
    return snapshot(blocks=view, step=STEP)


def level(part: list[Block], per: int, tint: Tint) -> int:
    """The expected brightness of a cell with these blocks."""
    if tint is Tint.REFERENCES:
        return min(max(refs for refs, *_ in part), RAMP - 1)
    if tint is Tint.AGE:
        youngest = min(0 if refs else STEP - used for refs, _, _, used, _ in part)
        return min((youngest + 1).bit_length() - 1 >> 1, RAMP - 1)
    if tint is Tint.TIER:
        return max(moved for *_, moved in part)
    levels = BRIGHT if tint is Tint.OWNER else RAMP
    tokens = sum(filled for refs, _, filled, *_ in part if refs)
    return next(step for step in range(levels) if tokens * levels <= (step + 1) * per * BLOCK)


@given(st.lists(block, min_size=1, max_size=60), st.integers(1, 9), st.sampled_from(Tint), st.booleans())
def test_a_cell_summarizes_its_blocks(
    blocks: list[Block], per: int, tint: Tint, sorted_by_session: bool
) -> None:
    shot = shot_of(blocks)
    state, codes = states(shot.blocks), (shot.blocks.owner + 1).astype(np.uint8)
    order = session_order(state, codes) if sorted_by_session else None
    cells = aggregate(shot, state, codes, per, tint, order)
    placed = blocks if order is None else [blocks[place] for place in order]
    assert len(cells.state) == -(-len(blocks) // per)
    for number in range(len(cells.state)):
        part = placed[number * per : (number + 1) * per]
        unheld = (State.FREE, State.CACHED)
        kinds = [State.CACHED + min(refs, 2) if refs else unheld[owner >= 0] for refs, owner, *_ in part]
        assert cells.state[number] == max(kinds)
        assert cells.level[number] == level(part, per, tint)
        expected = min(max(kinds), State.USED)
        votes = Counter(
            owner + 1
            for kind, (_, owner, *_) in zip(kinds, part, strict=True)
            if min(kind, State.USED) == expected
        )
        if max(kinds) == State.FREE:
            assert cells.owner[number] == 0
        else:
            assert votes[cells.owner[number]] == max(votes.values())


@given(st.integers(1, 200_000), st.integers(1, 300), st.integers(1, 180))
def test_every_block_has_a_cell_and_cells_are_no_larger_than_needed(
    blocks: int, width: int, lines: int
) -> None:
    grid = Grid.fit(blocks, width, lines)
    assert grid.columns * grid.span <= width
    assert grid.cells * grid.per >= blocks
    assert grid.per == 1 or (grid.per - 1) * width * lines < blocks
    last = (blocks - 1) // grid.per
    assert blocks - 1 in grid.blocks(last, blocks)
    assert last < grid.cells


@given(st.lists(block, min_size=1, max_size=80))
def test_sorted_by_session_the_blocks_of_an_owner_are_adjacent(
    blocks: list[Block],
) -> None:
    shot = shot_of(blocks)
    state, codes = states(shot.blocks), (shot.blocks.owner + 1).astype(np.uint8)
    order = session_order(state, codes)
    assert sorted(order.tolist()) == list(range(len(blocks)))
    rooms = [
        (0 if state[place] >= State.USED else State.SHARED - state[place], codes[place]) for place in order
    ]
    assert rooms == sorted(rooms)


def test_a_few_blocks_have_wide_cells() -> None:
    assert Grid.fit(64, 60, 20) == Grid(15, 20, 1, 4)
    assert Grid.fit(12_288, 60, 32) == Grid(60, 32, 7, 1)


def test_owners_have_small_numbers_and_other_requests_none() -> None:
    codes = Codes()
    a, b = Owner("A", 0), Owner("B", 1)
    owners = {3: a, 70: b, 71: a}
    assert codes.of(np.array([-1, 3, 70, 71, 5, 90]), owners, ()).tolist() == [0, 1, 2, 1, 0, 0]
    assert codes.owners == [UNKNOWN, a, b]
    del owners[70]
    owners[90] = b
    assert codes.of(np.array([90, 70]), owners, live=(90,)).tolist() == [2, 0]


def test_owners_of_a_fleets_requests() -> None:
    codes, owner = Codes(), Owner("A", 0)
    owners = {1: owner, NUMBERS + 1: owner, 63 * NUMBERS: owner}
    requests = np.array([-1, 1, 2, NUMBERS, NUMBERS + 1, 63 * NUMBERS, 64 * NUMBERS])
    assert codes.of(requests, owners, ()).tolist() == [0, 1, 0, 0, 1, 1, 0]


def test_the_names_in_the_heading() -> None:
    assert [*map(str, Order), *map(str, Tint)] == [
        "physical",
        "by session",
        "owner",
        "age",
        "references",
        "fill",
        "tier",
    ]


def test_blocks_outside_a_window_have_a_separate_state() -> None:
    shot = shot_of(
        [
            (0, -1, 0, 0, 0),
            (0, -1, 0, 0, 0),
            (0, 3, BLOCK, 5, 0),
            (0, 3, BLOCK, 5, 0),
            (1, 3, 4, 9, 0),
            (2, 3, BLOCK, 9, 0),
        ]
    )
    left = np.array([False, True, False, True, False, False])
    view = replace(shot.blocks, left=left)
    assert states(view).tolist() == [
        State.FREE,
        State.DROPPED,
        State.CACHED,
        State.DROPPED,
        State.USED,
        State.SHARED,
    ]
    assert states(view).dtype == states(shot.blocks).dtype
    assert State.DROPPED not in states(shot.blocks)
