"""Transfer orders in a recording are checked before a tier or the cache's memory uses them."""

from typing import Any

import pytest

from engine.api.errors import BadWire
from engine.kv.tables import BlockTables
from engine.kv.tiers.tier import TransferEnd, TransferOrder
from engine.scheduling.step_bytes import Bounds
from engine.serving.recordings.transfers import TransferReplay
from tests.engine.byte_tier import ByteTier
from tests.engine.ledger import LedgerRunner, LedgerSpace

BOUNDS = Bounds(slots=2, width=4, block_size=16, blocks=20, vocab=1000)
ONE, TWO = b"1" * 32, b"2" * 32


def fresh(looks: int = 0) -> tuple[TransferReplay, LedgerRunner]:
    runner = LedgerRunner(None, BlockTables(2, 4), LedgerSpace(20, 0, 16).cells, [ByteTier(looks=looks)])
    return TransferReplay(runner, (("bytes", 100),)), runner


def order(id: int = 0, kind: Any = "store", **changes: Any) -> TransferOrder:
    return TransferOrder(id, kind, **{"tier": "bytes", "names": (ONE, TWO), "blocks": (3, 19)} | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tier": "tape"}, "tier 'tape', which this runner lacks"),
        ({"names": (ONE, ONE)}, "bad names"),
        ({"names": (ONE, b"short")}, "bad names"),
        ({"names": (), "blocks": ()}, "bad names"),
        ({"blocks": (3, 20)}, "a block of 20"),
        ({"blocks": (-1, 3)}, "a block of -1"),
        ({"blocks": (3, 3)}, "2 blocks, 2 names"),
        ({"blocks": (3,)}, "1 blocks, 2 names"),
        ({"kind": "release"}, "2 blocks, 2 names"),
    ],
)
def test_an_order_out_of_bounds_is_refused(changes: dict[str, Any], words: str) -> None:
    replayed, runner = fresh()
    with pytest.raises(BadWire, match=words):
        replayed.begin(order(**changes), BOUNDS)
    assert not runner.transferred(wait=True)


def test_replay_waits_for_a_transfer_that_ended_at_that_point() -> None:
    replayed, runner = fresh(looks=1000)
    runner.cells[3] = 7
    replayed.begin(order(), BOUNDS)
    replayed.end(TransferEnd(0))
    replayed.begin(order(1, "load", names=(ONE,), blocks=(5,)), BOUNDS)
    with pytest.raises(BadWire, match="starts transfer 1 twice"):
        replayed.begin(order(1, "load", names=(ONE,), blocks=(6,)), BOUNDS)
    replayed.end(TransferEnd(1))
    assert (runner.cells[5] == 7).all()
    with pytest.raises(BadWire, match="ends transfer 1, which is not in flight"):
        replayed.end(TransferEnd(1))


def test_a_transfer_that_fails_only_in_replay_is_an_error() -> None:
    for error in ("", "then, too"):
        replayed, _ = fresh()
        replayed.begin(order(kind="load"), BOUNDS)  # of blocks that were never stored
        if error:
            replayed.end(TransferEnd(0, error=error))
        else:
            with pytest.raises(BadWire, match="succeeded then and failed now: KeyError"):
                replayed.end(TransferEnd(0))
