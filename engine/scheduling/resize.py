"""Another number of blocks while requests hold some, between two steps when none is under way."""

from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step import Step, StepBuilder


def shrink(scheduler: Scheduler, size: int) -> Step:
    """Leaves the first `size` blocks, which hold at least one request of full length.

    What is cached goes first, then those give way that the policy ranks last. The step, which has no rows,
    moves what lies beyond.
    """
    builder, pool = StepBuilder(0), scheduler.pool
    while pool.in_use > size:
        scheduler.give_way(builder)
    moved = pool.shrink(size)
    for request in scheduler.requests.values():
        scheduler.kv.moved(request, moved)
    builder.copies = dict(enumerate(moved.items()))
    return scheduler.changes.build(builder, scheduler.step)
