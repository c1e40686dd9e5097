"""Another number of blocks while requests hold some, between two steps when none is under way."""

from engine.scheduling.plan import Draft, Plan
from engine.scheduling.scheduler import Scheduler


def shrink(scheduler: Scheduler, size: int) -> Plan:
    """Leaves the first `size` blocks, which hold at least one request of full length.

    What is cached goes first, then those give way whom the policy ranks last. The plan, which has no rows,
    moves what lies beyond.
    """
    draft, pool = Draft(0), scheduler.pool
    while pool.in_use > size:
        scheduler.give_way(draft)
    moved = pool.shrink(size)
    for request in scheduler.requests.values():
        if not moved.keys().isdisjoint(request.blocks):
            request.blocks = [moved.get(block, block) for block in request.blocks]
            scheduler.tables.write(request.slot, 0, [max(block, 0) for block in request.blocks])
    return Plan(step=scheduler.step, rows=(), swaps_out=tuple(draft.swaps_out), copies=tuple(moved.items()))
