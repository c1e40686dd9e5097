"""Copies cached blocks to a lower tier shortly before they are evicted."""

from engine.kv.manager import KVManager
from engine.kv.tiers.moving import Moving
from engine.scheduling.costs import Costs
from engine.scheduling.transfers import Transfers

_EVERY = 8  # steps between two checks of the cache
_REST = 500  # steps without a copy after one failed
_SHARE = 1 / 64  # of the time of steps, for ordering copies that may not be needed


class Sinking:
    """Keeps as many blocks free, or copied below, as the next steps may take, but at most half of what the
    tier holds: the other half is for blocks that the device has lost.

    An eviction never waits for a copy: a block that is evicted before its copy will be computed again.
    """

    def __init__(self, kv: KVManager, transfers: Transfers, costs: Costs) -> None:
        self._pool, self._group_count = kv.pool, kv.group_count
        self._transfers, self._costs = transfers, costs
        self._spent = self._saved = 0.0  # seconds, by ordering copies beside steps, and by loads
        self._next = 0  # the step of the next check
        self._paused = 0  # the step before which there is none
        self._found = True  # whether the last check found something to copy
        self._goal = kv.pool.size  # blocks that were to be ready at the last check
        self._failures = 0

    def copy_ahead(self, step: int, step_tokens: int, *, idle: bool = False) -> None:
        """Start copies if they are due. `step_tokens`: the maximum tokens of a step.

        `idle`: no request is left, so there is time to copy everything the next steps may evict.
        """
        if not self._transfers.tiers:
            return
        pool, one = self._pool, -(-step_tokens // self._pool.block_size) * self._group_count
        ready = pool.ready + self._transfers.sinking
        early = idle or (self._found and ready < min(one, self._goal - self._goal // _EVERY))
        if (step < self._next and not early) or step < self._paused:
            return
        if not idle and self._spent > _SHARE * self._costs.busy + self._saved:
            return
        self._next = step + _EVERY
        if self._failures != self._transfers.failed_sinks:
            self._failures, self._paused = self._transfers.failed_sinks, step + _REST
            return
        tier = self._transfers.below
        self._found = tier is not None
        if tier is None:
            return
        self._goal = min(_EVERY * one, pool.size, -(-tier.size // 2))
        wanted = self._goal - ready
        if wanted > (0 if idle else self._goal // _EVERY):  # a copy of one block costs as much as one of many
            most = pool.cached if idle else -(-pool.available // 2)  # what is being copied cannot be taken
            self._found = self._transfers.sink(tier, min(wanted, most))

    def ordered(self, moving: Moving) -> None:
        """A transfer was ordered while requests ran. The first ones load kernels, once."""
        if moving.request is None:
            usual = self._transfers.tiers[moving.order.tier].cost.store.whole(len(moving.blocks))
            self._spent += min(moving.ordering, usual)

    def ended(self, moving: Moving, seconds: float) -> None:
        if moving.order.kind == "load" and moving.request and not moving.request.preemptions:
            tokens = len(moving.order.names) * self._pool.block_size // self._group_count
            self._saved += max(0.0, self._costs.recompute(tokens) - max(seconds, moving.ordering))
