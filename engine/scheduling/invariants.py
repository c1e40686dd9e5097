"""Checks that blocks, slots and queues agree."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from engine.api.request import Request
from engine.kv.checks import check_blocks
from engine.kv.manager import KVManager
from engine.scheduling.queue import WaitingQueue
from engine.scheduling.residence import TierBlock
from engine.scheduling.transfers import Transfers


def check_invariants(
    requests: Mapping[int, Request],
    running: Sequence[Request],
    waiting: WaitingQueue,
    transfers: Transfers,
    kv: KVManager,
) -> None:
    """Raise AssertionError if blocks, slots and queues disagree."""
    line = [*waiting, *waiting.parked.values()]
    rowless = [*line, *transfers.incoming]
    places = [each.id for each in (*running, *rowless)]
    assert set(places) == set(requests)
    assert len(places) == len(requests), "a request is in two places"
    assert all(each.slot >= 0 for each in running), "a request runs without a slot"
    assert all(each.slot < 0 for each in rowless), "a request waits and has a slot"
    assert not any(each.blocks for each in line), "a request in the queue holds blocks"
    assert all(each.stored is None for each in (*running, *transfers.incoming)), (
        "a request has blocks and also relies on stored ones"
    )
    check_blocks(kv, requests.values(), [each.blocks for each in transfers.in_flight.values()])
    check_names(requests.values(), transfers)


def check_names(requests: Iterable[Request], transfers: Transfers) -> None:
    """Check that each name is retained once for each request or load that relies on it."""
    retained, storing = Counter[TierBlock](), set[TierBlock]()
    for stored in (each.stored for each in requests if each.stored is not None):
        retained.update(TierBlock(stored.tier, name) for name in stored.names)
    for order in (each.order for each in transfers.in_flight.values()):
        names = [TierBlock(order.tier, name) for name in order.names]
        retained.update(names) if order.kind == "load" else storing.update(names)
    transfers.residence.check(retained, storing)
