"""Copies cached blocks to a lower tier shortly before they are evicted."""

from engine.kv.pool import BlockPool
from engine.scheduling.transfers import Transfers

_EVERY = 8  # steps between two looks at the cache
_REST = 500  # steps without a copy after one failed


class Sinking:
    """Keeps as many blocks free, or copied below, as the next steps may take.

    An eviction never waits for a copy: a block that is evicted before its copy will be computed again.
    """

    def __init__(self, pool: BlockPool, transfers: Transfers) -> None:
        self._pool, self._transfers = pool, transfers
        self._next = 0  # the step of the next look
        self._failures = 0

    def turn(self, step: int, step_tokens: int) -> None:
        """Start copies if it is time to. `step_tokens`: the maximum tokens of a step."""
        if step < self._next or not self._transfers.tiers:
            return
        self._next = step + _EVERY
        if self._failures != self._transfers.failed_sinks:
            self._failures = self._transfers.failed_sinks
            self._next = step + _REST
            return
        pool = self._pool
        taken = -(-_EVERY * step_tokens // pool.block_size)
        if (wanted := min(taken, pool.size // 2) - pool.ready) > 0:
            self._transfers.sink(min(wanted, -(-pool.available // 2)))
