"""Another number of blocks while requests hold some, between two steps when none is under way."""

from engine.scheduling.plan import Plan
from engine.scheduling.planner import Planner
from engine.scheduling.scheduler import Scheduler


def shrink(scheduler: Scheduler, size: int) -> Plan:
    """Leaves the first `size` blocks, which hold at least one request of full length.

    What is cached goes first, then those give way whom the policy ranks last. The plan, which has no rows,
    moves what lies beyond.
    """
    planner, pool = Planner(scheduler, 0), scheduler.pool
    while pool.in_use > size:
        planner.give_way()
    moved = pool.shrink(size)
    for request in scheduler.requests.values():
        scheduler.holdings.moved(request, moved)
    swaps_out = tuple(planner.draft.swaps_out)
    return Plan(step=scheduler.step, rows=(), swaps_out=swaps_out, copies=tuple(moved.items()))
