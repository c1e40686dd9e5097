"""Replays the transfers of a recording."""

from engine.api.errors import BadWire
from engine.execution.protocol import Runner
from engine.kv.tiers.tier import TransferEnd, TransferOrder
from engine.scheduling.step_bytes import Bounds

_NAME = 32  # bytes


class TransferReplay:
    """Starts and ends transfers where the recording did, so that loads are complete in time."""

    def __init__(self, runner: Runner, tiers: tuple[tuple[str, int], ...]) -> None:
        self._runner, self._tiers = runner, dict(tiers)
        self._under_way: dict[int, TransferOrder] = {}
        self._over: dict[int, TransferEnd] = {}

    def begin(self, order: TransferOrder, bounds: Bounds) -> None:
        self._check(order, bounds)
        if order.blocks:
            self._under_way[order.id] = order
        self._runner.transfer(order)

    def end(self, then: TransferEnd) -> None:
        """End a transfer. One that failed when recorded may succeed now; its blocks are never read."""
        if self._under_way.pop(then.id, None) is None:
            raise BadWire(f"the recording ends transfer {then.id}, which is not in flight")
        self._over |= {end.id: end for end in self._runner.transferred(wait=True)}
        now = self._over.pop(then.id)
        if now.error and not then.error:
            raise BadWire(f"the recording's transfer {then.id} succeeded then and failed now: {now.error}")

    def _check(self, order: TransferOrder, bounds: Bounds) -> None:
        """Raise BadWire if a value is out of bounds or conflicts with another transfer."""
        names, blocks = order.names, order.blocks
        if order.tier not in self._tiers:
            raise BadWire(f"the recording has a transfer for tier {order.tier!r}, which this runner lacks")
        if any(len(name) != _NAME for name in names) or not len(set(names)) == len(names) > 0:
            raise BadWire(f"the recording's transfer {order.id} has bad names")
        if order.id in self._under_way or order.id in self._over:
            raise BadWire(f"the recording starts transfer {order.id} twice")
        moves = order.kind in ("store", "load")
        if len(blocks) != (len(names) if moves else 0) or len(set(blocks)) != len(blocks):
            raise BadWire(f"the recording's transfer {order.id} has {len(blocks)} blocks, {len(names)} names")
        if wrong := [block for block in blocks if not 0 <= block < bounds.blocks]:
            raise BadWire(f"the recording's transfer {order.id} has a block of {wrong[0]}")
