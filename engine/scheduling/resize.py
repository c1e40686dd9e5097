"""Another number of blocks while requests hold some, between two steps when none is under way."""

from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step import Step, StepBuilder


def make_room(scheduler: Scheduler, size: int) -> None:
    """Those give way that the policy ranks last, until `size` blocks are enough for the rest.

    They hold at least one request of full length. Blocks may still be on their way to a tier.
    """
    builder, pool, transfers = StepBuilder(0), scheduler.pool, scheduler.transfers
    while pool.in_use - transfers.leaving > size:
        scheduler.give_way(builder)


def shrink(scheduler: Scheduler, size: int) -> Step:
    """Leaves the first `size` blocks once there is room, and no transfer is under way.

    What is cached beyond goes. The step, which has no rows, moves the rest of what lies beyond.
    """
    builder, pool = StepBuilder(0), scheduler.pool
    moved = pool.shrink(size)
    assert not scheduler.transfers.under_way, "a transfer holds blocks that would move"
    for request in scheduler.requests.values():
        scheduler.kv.moved(request, moved)
    builder.copies = dict(enumerate(moved.items()))
    return scheduler.changes.build(builder, scheduler.step)
