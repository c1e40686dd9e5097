"""Sends the blocks of a prompt to other engines while it is computed, through a tier that carries them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.api.errors import BadInput
from engine.api.request import Request
from engine.kv.tiers.tier import BlockName, Tier, TransferEnd, TransferOrder

Copy = Callable[[Tier, Sequence[tuple[BlockName, int]], Request], tuple[TransferOrder | None, int]]
Report = Callable[[int], None]  # with the number of blocks that were sent


@dataclass(slots=True, eq=False)
class _Outgoing:
    """What a request sends."""

    next: int  # the first block that has not been sent
    stop: int
    report: Report
    sent: int = 0
    waits: set[int] = field(default_factory=set)  # once its request has ended: orders to wait for


class Sending:
    """Stores each block of a request that sends, as soon as it is full. Once the request has ended and its
    blocks are in the tier, it is reported.
    """

    def __init__(self, tier: Tier | None, copy: Copy, block_size: int) -> None:
        """`copy`: orders a store of blocks that the tier lacks; returns it, and how many had no room."""
        self._tier, self._copy, self._block_size = tier, copy, block_size
        self._running: dict[int, _Outgoing] = {}  # by request
        self._ending: list[_Outgoing] = []
        self._in_flight: dict[int, tuple[_Outgoing, int]] = {}  # by order: whose, and its blocks

    @property
    def way(self) -> str:
        """How blocks leave this engine now."""
        return "" if self._tier is None else self._tier.way

    def check(self) -> None:
        """Raise if this engine cannot send blocks."""
        if self._tier is None:
            raise BadInput("this engine has no memory to send blocks through", field="sends")

    def add(self, request: Request, first: int, report: Report) -> None:
        """Send the request's prompt from this block on, but no more than half of what the tier holds:
        otherwise its last blocks would replace its first.
        """
        assert self._tier is not None
        stop = min(request.prompt_len // self._block_size, first + self._tier.size // 2)
        self._running[request.id] = _Outgoing(first, stop, report)

    def send(self, request: Request) -> None:
        """Send what the request has published since the last call."""
        if (going := self._running.get(request.id)) is None:
            return
        assert self._tier is not None
        part = slice(going.next, min(going.stop, request.published, len(request.blocks)))
        if part.stop <= going.next:
            return
        blocks = list(zip(request.chain[part], request.blocks[part], strict=True))
        order, left = self._copy(self._tier, blocks, request)
        going.next = part.stop
        if left:
            going.stop = part.stop  # the blocks behind a gap are useless
        if order is not None:
            self._in_flight[order.id] = going, len(order.names)

    def finish(self, request: Request) -> None:
        """Send the rest of a request that ends. Its blocks are there when all orders so far have ended: some
        of them may be on their way for another request.
        """
        self.send(request)
        if (going := self._running.pop(request.id, None)) is not None:
            going.waits = set(self._in_flight)
            self._ending.append(going)
            self._report()

    def cancel(self, request: Request) -> None:
        """Send no more of a request that failed, and report nothing."""
        self._running.pop(request.id, None)

    def end(self, end: TransferEnd) -> None:
        """Note the end of a store, perhaps one that sends nothing."""
        if (found := self._in_flight.pop(end.id, None)) is not None:
            going, blocks = found
            going.sent += 0 if end.error else blocks
            for each in self._ending:
                each.waits.discard(end.id)
            self._report()

    def clear(self) -> None:
        for each in (self._running, self._ending, self._in_flight):
            each.clear()

    def _report(self) -> None:
        there = [each for each in self._ending if not each.waits]
        self._ending = [each for each in self._ending if each.waits]
        for each in there:
            each.report(each.sent)
