"""How much a disk tier holds: no more than its room, and what it drops is not looked for."""

from contextlib import closing
from pathlib import Path
from typing import Any

from engine.kv.tiers.disk_index import DiskIndex
from engine.kv.tiers.tier import Transfer
from tests.engine.ledger import alone
from tests.tiers.disk_engine import ask, computed, disk_engine, errors


def test_blocks_that_a_full_disk_drops_are_not_counted_or_looked_for(tmp_path: Path) -> None:
    with disk_engine(tmp_path, slots=8, blocks=40) as (engine, tier):
        seen = errors(engine)
        for number in range(4):
            prompt = [*range(100 * number, 100 * number + 80)]  # five blocks
            assert ask(engine, prompt) == alone(prompt, 4)
            tier.flush()
            assert engine.snapshot().tiers[0].in_use <= tier.size == 8
        with closing(DiskIndex(tmp_path, 8 * 4096)) as index:
            assert {*tier._slots} == {*index.slots(4096)}
    assert not seen


def test_an_engine_with_less_room_drops_the_blocks_used_least_recently(tmp_path: Path) -> None:
    with disk_engine(tmp_path, slots=64) as (engine, tier):
        for number in range(8):
            ask(engine, [*range(100 * number, 100 * number + 80)])  # five blocks
    with disk_engine(tmp_path, slots=16) as (engine, tier):
        assert 8 <= tier.used <= tier.size == 16
        assert sum(each.stat().st_size for each in tmp_path.glob("*.kv")) <= 16 * 4096
        assert ask(engine, [*range(700, 780)]) == alone([*range(700, 780)], 4)
        assert computed(engine) < 80, "the newest blocks are still there"


def test_a_reply_that_fills_a_small_room_is_no_problem_of_the_disk(tmp_path: Path) -> None:
    with disk_engine(tmp_path, slots=4) as (engine, tier):
        problems: list[str] = []
        store = tier.store

        def noted(*given: Any) -> Transfer:
            try:
                return store(*given)
            finally:
                problems.append(tier.problem)

        tier.store = noted  # type: ignore[method-assign]
        ask(engine, [*range(100, 180)])  # five blocks
        tier.flush()
        assert problems and not any(problems) and tier.used == 4
