"""Which running requests a waiting one may preempt.

A request overtakes those that have a lower priority and that the policy also ranks after it. Ranks are
fixed, so two requests never preempt each other in turn.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from engine.api.request import Request
from engine.kv.pool import BlockPool
from engine.kv.window import held
from engine.scheduling.queue import Rank

RankOf = Callable[[Request], Rank]


def overtaken(head: Request | None, running: Iterable[Request], rank: RankOf) -> list[Request]:
    """The requests that the waiting one overtakes, in the order of their ranks."""
    if head is None or not (lower := [each for each in running if each.priority > head.priority]):
        return []
    return sorted((each for each in lower if rank(each) > rank(head)), key=rank)


def victims(
    head: Request, running: Iterable[Request], rank: RankOf, pool: BlockPool, blocks: int
) -> list[Request]:
    """The requests to preempt for a slot and this many blocks, ranked last first.

    Empty if all of them together have too few blocks, because preempting them would not help.
    """
    chosen: list[Request] = []
    freed, releases = 0, Counter[int]()
    for victim in reversed(overtaken(head, running, rank)):
        chosen.append(victim)
        for block in held(victim.blocks):
            releases[block] += 1
            freed += releases[block] == pool.refs[block]  # others may hold it, too
        if freed >= blocks:
            return chosen
    return []
