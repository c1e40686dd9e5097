"""Sends the blocks of a prompt to other engines while it is computed, through a tier that carries them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.api.errors import BadInput
from engine.api.request import Request
from engine.kv.tiers.tier import BlockName, Tier, TransferOrder

Report = Callable[[int], None]  # with the number of blocks that were sent


class Storing(Protocol):
    """What sending needs of the transfers."""

    def missing(self, tier: Tier, names: Sequence[BlockName]) -> list[BlockName]:
        """The names that are neither in the tier nor on their way there."""

    def room(self, tier: Tier) -> int:
        """How many more blocks the tier can take."""

    def share_and_store(self, tier: Tier, blocks: Sequence[tuple[BlockName, int]], owner: Request) -> int:
        """Order a store of blocks that the request shares with it. Returns the order's id."""


@dataclass(slots=True)
class _Outgoing:
    next: int  # block
    stop: int  # the first block that is not to be sent
    report: Report
    sent: int = 0
    waits: set[int] = field(default_factory=set)  # once its request has ended: orders to wait for


class Sending:
    """Stores each block of a request that sends, as soon as it is full. When the request has ended and the
    blocks are there, it is reported.
    """

    def __init__(self, tiers: Sequence[Tier], storing: Storing, block_size: int) -> None:
        self._tier = next((each for each in tiers if each.transit), None)
        self._storing, self._block_size = storing, block_size
        self._running: dict[int, _Outgoing] = {}  # by request
        self._ending: list[_Outgoing] = []
        self._in_flight: set[int] = set()  # orders

    def check(self) -> None:
        """Raise if this engine cannot send blocks."""
        if self._tier is None:
            raise BadInput("this engine has no memory to send blocks through", field="sends")

    def add(self, request: Request, first: int, report: Report) -> None:
        """Send the request's prompt from this block on, but no more than half of what the tier holds: else
        its last blocks would replace its first.
        """
        assert self._tier is not None
        stop = min(request.prompt_len // self._block_size, first + self._tier.size // 2)
        self._running[request.id] = _Outgoing(first, stop, report)

    def send(self, request: Request) -> None:
        """Send what the request has published since the last call."""
        if (going := self._running.get(request.id)) is None:
            return
        assert self._tier is not None
        stop = min(going.stop, request.published, len(request.blocks))
        if stop <= going.next or (room := self._storing.room(self._tier)) <= 0:
            return
        part = slice(going.next, stop)
        missing = set(self._storing.missing(self._tier, request.chain[part]))
        blocks = [
            each for each in zip(request.chain[part], request.blocks[part], strict=True) if each[0] in missing
        ]
        if len(blocks) > room:  # the others follow, if there is room later
            blocks = blocks[:room]
            stop = request.chain.index(blocks[-1][0]) + 1
        going.next = stop
        if blocks:
            going.sent += len(blocks)
            self._in_flight.add(self._storing.share_and_store(self._tier, blocks, request))

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

    def ended(self, order: TransferOrder) -> None:
        """A store has ended, perhaps one of others."""
        if order.id in self._in_flight:
            self._in_flight.remove(order.id)
            for each in self._ending:
                each.waits.discard(order.id)
            self._report()

    def clear(self) -> None:
        for each in (self._running, self._ending, self._in_flight):
            each.clear()

    def _report(self) -> None:
        there = [each for each in self._ending if not each.waits]
        self._ending = [each for each in self._ending if each.waits]
        for each in there:
            each.report(each.sent)
