"""Checks that blocks, tables and requests agree."""

from collections.abc import Iterable, Sequence

from engine.api.request import Request
from engine.kv.manager import KVManager
from engine.kv.window import GONE, held


def check_blocks(kv: KVManager, requests: Iterable[Request], moving: Iterable[Sequence[int]]) -> None:
    """Raise AssertionError if blocks and tables disagree, or a request lacks a block it needs.

    `moving`: the blocks of each transfer.
    """
    alive = list(requests)
    kv.pool.check({each.id: each.blocks for each in alive}, moving)
    running = [each for each in alive if each.slot >= 0]
    slots = {each.slot for each in running}
    assert len(slots) == len(running) == len(kv.tables.grid) - kv.tables.free, "a slot is lost"
    for each in running:
        _check_row(kv, each)


def _check_row(kv: KVManager, each: Request) -> None:
    listed = each.blocks if kv.budget is None else held(each.blocks)
    row = kv.tables.listed(each.slot, len(listed))
    same = all(block in (there, GONE) for there, block in zip(row, listed, strict=True))
    assert same, f"request {each.id}: table {row}, blocks {each.blocks}"
    assert len(each.blocks) >= kv.blocks_for(each.launched), f"request {each.id} lacks a block"
    assert each.blocks.count(GONE) == each.gone, f"request {each.id}: {each.gone} gone: {each.blocks}"
    if kv.budget is not None:
        assert each.skipped == each.gone * kv.pool.block_size, f"request {each.id}: {each.skipped} skipped"
        assert len(listed) <= kv.budget.peak + 1, f"request {each.id} exceeds its budget: {each.blocks}"
        return
    for at, block in enumerate(each.blocks):
        assert block != GONE or not kv.groups.keeps(at, kv.position(each)), (
            f"request {each.id} lacks its block {at}: {each.blocks}"
        )
        assert block == GONE or kv.groups.keeps(at, each.trimmed), (
            f"request {each.id} holds block {at}, which has left its window: {each.blocks}"
        )
