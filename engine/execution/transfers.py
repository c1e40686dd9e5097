"""Runs transfer orders concurrently with the steps."""

from collections.abc import Callable, Sequence

from engine.api.errors import EngineDead
from engine.api.events import log
from engine.kv.tiers.tier import DeviceBlocks, DeviceCopy, Tier, Transfer, TransferEnd, TransferOrder


class TransferRunner:
    """Starts each store and load after the steps launched so far, and reports its end."""

    def __init__(self, tiers: Sequence[Tier], blocks: Callable[[tuple[int, ...]], DeviceBlocks]) -> None:
        """`blocks`: returns cache blocks by number, as left by the steps launched before the call."""
        self._tiers, self._blocks = {tier.name: tier for tier in tiers}, blocks
        self._under_way: dict[int, Transfer] = {}
        self._failed: list[TransferEnd] = []  # failed before they started
        self._followed: set[int] = set()

    def begin(self, order: TransferOrder) -> None:
        tier = self._tiers[order.tier]
        if order.kind == "release":
            tier.release(order.names)
        elif order.kind == "forget":
            tier.forget(order.names)
        elif order.kind == "own":
            tier.own(order.names, order.owner)
        else:
            work = tier.store if order.kind == "store" else tier.load
            try:
                self._under_way[order.id] = work(order.names, self._blocks(order.blocks))
            except Exception as error:
                self._failed.append(_failure(order.id, error))

    def follow(self, id: int) -> bool:
        """Have later steps wait for a transfer on the device. False if it cannot be, or not yet."""
        transfer = self._under_way.get(id)
        if follows := isinstance(transfer, DeviceCopy) and transfer.follow():
            self._followed.add(id)
        return follows

    def ended(self, *, wait: bool = False) -> list[TransferEnd]:
        """Transfers that have ended since the last call. `wait`: wait for all in flight.

        Raises EngineDead if one failed that steps have followed: they have read wrong blocks.
        """
        ends, self._failed = self._failed, []
        for id, transfer in list(self._under_way.items()):
            if wait or transfer.done():
                del self._under_way[id]
                try:
                    ends.append(TransferEnd(id, transfer.result()))
                except Exception as error:
                    if id in self._followed:
                        raise EngineDead(f"a copy failed that a step waited for: {error}") from error
                    ends.append(_failure(id, error))
                self._followed.discard(id)
        return ends

    def reset(self) -> None:
        for tier in self._tiers.values():
            tier.reset()


def _failure(id: int, error: Exception) -> TransferEnd:
    log.warning("transfer %d failed", id, exc_info=error)
    return TransferEnd(id, error=f"{type(error).__name__}: {error}")
