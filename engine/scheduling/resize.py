"""Changes the number of blocks while requests hold some. Runs between steps, when none is in flight."""

from engine.scheduling.building import StepBuilder
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step import Step


def make_room(scheduler: Scheduler, size: int) -> None:
    """Preempt the requests that the policy ranks last until `size` blocks are enough for the others.

    `size` must hold at least one request of full length. Blocks may still be in transfer to a tier.
    """
    builder, pool, transfers = StepBuilder(0), scheduler.pool, scheduler.transfers
    while pool.in_use - transfers.freeing > size:
        scheduler.preempt_last(builder)


def shrink(scheduler: Scheduler, size: int) -> Step:
    """Keep the first `size` blocks. There must be room, and no transfer in flight.

    Cached blocks beyond `size` are evicted. The returned step has no rows; it moves the other blocks.
    """
    builder, pool = StepBuilder(0), scheduler.pool
    moved = pool.shrink(size)
    assert not scheduler.transfers.in_flight, "a transfer holds blocks that would move"
    for request in scheduler.requests.values():
        scheduler.kv.apply_moves(request, moved)
    builder.copies = {0: tuple(moved.items())}
    return scheduler.changes.build(builder, scheduler.step)
