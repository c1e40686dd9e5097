"""Copies cached blocks to a lower tier shortly before they are evicted.

An eviction itself never waits for a copy. A block that is evicted too early for one is lost, and will be
computed again.
"""

from engine.kv.pool import BlockPool
from engine.scheduling.transfers import Transfers

EVERY = 8  # steps between two looks at the cache
_SHARE = 16  # one block in so many is free, or has a copy below
_MOST = 1024  # more blocks than that are not needed between two looks


def sink(pool: BlockPool, transfers: Transfers) -> None:
    """Store the blocks that are evicted next, so that enough blocks are free or have a copy below."""
    ready = min(max(pool.size // _SHARE, 1), _MOST)
    if (wanted := ready - pool.free_blocks) > 0 and (oldest := pool.oldest(wanted)):
        transfers.sink(oldest)
