"""Transfers of a recording, on the runner that replays it."""

from engine.api.errors import BadWire
from engine.execution.protocol import Runner
from engine.kv.tiers.tier import TransferEnd, TransferOrder
from engine.scheduling.step_bytes import Bounds

_NAME = 32  # bytes


class TransferReplay:
    """Begins them where they began then, and waits where they had ended: what was loaded is there in time."""

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
        """One that failed then may succeed now: nobody reads what it brings."""
        if self._under_way.pop(then.id, None) is None:
            raise BadWire(f"the recording ends transfer {then.id}, which is not under way")
        self._over |= {end.id: end for end in self._runner.transferred(wait=True)}
        now = self._over.pop(then.id)
        if now.error and not then.error:
            raise BadWire(f"the recording's transfer {then.id} succeeded, and failed here: {now.error}")

    def _check(self, order: TransferOrder, bounds: Bounds) -> None:
        """Raises BadWire where anything of it is out of bounds, or meets another transfer."""
        names, blocks = order.names, order.blocks
        if order.tier not in self._tiers:
            raise BadWire(f"the recording has a transfer for tier {order.tier!r}, which is not here")
        if any(len(name) != _NAME for name in names) or not len(set(names)) == len(names) > 0:
            raise BadWire(f"the recording's transfer {order.id} has bad names")
        if order.id in self._under_way or order.id in self._over:
            raise BadWire(f"the recording begins transfer {order.id} twice")
        moves = order.kind in ("store", "load")
        if len(blocks) != (len(names) if moves else 0) or len(set(blocks)) != len(blocks):
            raise BadWire(f"the recording's transfer {order.id} has {len(blocks)} blocks, {len(names)} names")
        if wrong := [block for block in blocks if not 0 <= block < bounds.blocks]:
            raise BadWire(f"the recording's transfer {order.id} has a block of {wrong[0]}")
