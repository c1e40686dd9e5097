"""Transfers of blocks between the device's cache and the tiers below it, concurrent with the steps."""

import itertools
from collections.abc import Sequence

from engine.api.request import Request, Stored, TierOffer
from engine.api.snapshot import HOST, loaded_from, stored_in
from engine.kv.manager import KVManager
from engine.kv.tiers import finding
from engine.kv.tiers.moving import FoundBlocks, Moving
from engine.kv.tiers.tier import BlockName, Tier, TransferEnd, TransferKind, TransferOrder, front
from engine.kv.window import held
from engine.scheduling.costs import Costs
from engine.scheduling.residence import Residence
from engine.scheduling.sending import Sending
from engine.scheduling.settings import SchedulerSettings

_CHAT = 64  # blocks of a chat that is worth keeping


class Transfers:
    """Decides whether to move blocks or recompute them, and tracks all transfers in flight."""

    def __init__(self, kv: KVManager, tiers: Sequence[Tier], rules: SchedulerSettings, costs: Costs) -> None:
        self.tiers = {tier.name: tier for tier in tiers}
        self._keeping = [tier for tier in tiers if not tier.transit]
        transit = next((tier for tier in tiers if tier.transit), None)
        self.sending = Sending(transit, self.copy, kv.pool.block_size)
        self._kv, self._rules, self._costs = kv, rules, costs
        self.orders: list[TransferOrder] = []  # not sent yet, in this order
        self.in_flight: dict[int, Moving] = {}
        self.loading: dict[int, Moving] = {}  # by request, neither queued nor running: what it waits for
        self.loaded: list[Request] = []  # their blocks are loaded; they wait for a slot
        self._ids = itertools.count()
        self.residence = Residence()
        self.failed_sinks = 0
        self._ranks = {name: rank for rank, name in enumerate(dict.fromkeys((HOST, *self.tiers)))}

    @property
    def pending(self) -> bool:
        return bool(self.orders or self.in_flight)

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """The name of each tier and the maximum number of blocks it holds."""
        return tuple((tier.name, tier.size) for tier in self.tiers.values())

    @property
    def incoming(self) -> tuple[Request, ...]:
        """Requests that have blocks but do not run yet."""
        return (*filter(None, map(self.awaited_by, self.loading.values())), *self.loaded)

    @property
    def freeing(self) -> int:
        """Blocks that become free when the current stores end."""
        refs = self._kv.pool.refs
        return sum(
            refs[block] == 1
            for moving in self.in_flight.values()
            if moving.order.kind == "store"
            for block in moving.blocks
        )

    @property
    def sinking(self) -> int:
        """Cached blocks that are being copied."""
        return sum(len(each.blocks) for each in self.in_flight.values() if each.request is None)

    # Storing

    def store(self, victim: Request, rows: int) -> str:
        """Store the victim's blocks in the first tier that has room, if that beats recomputing.

        Returns the tier's name, or "" if nothing is stored. On success the victim holds no device blocks.
        `rows`: how many requests run without it. One waits for the blocks, and later the victim for its own.
        """
        if self._rules.preemption == "recompute" or not (names := self._kv.names(victim)):
            return ""
        for tier in self._keeping:
            seconds = tier.cost.round_trip(len(names)) + 2 * self._costs.wait(rows)
            if not self._costs.moving_pays(seconds, victim.launched, self._rules):
                tier.cost.doubt()
            elif self._make_room(tier, len(missing := self._missing(tier, names)), names):
                self._store_victim(tier.name, victim, names, set(missing))
                return tier.name
        return ""

    @property
    def below(self) -> Tier | None:
        """The first tier from which loading the blocks of a chat would pay."""
        return next((each for each in self._keeping if self._loading_pays(each, _CHAT)), None)

    def sink(self, tier: Tier, most: int) -> bool:
        """Copy the blocks that are evicted next to the tier, as many as it can take.

        Returns whether there were any that the tier has now or will have.
        """
        pool = self._kv.pool
        most = min(most, self._room(tier) + self.residence.idle(tier.name))  # no others would fit
        if most <= 0 or not (blocks := pool.oldest(most)):
            return False
        missing = set(self._missing(tier, [name for _, name in blocks]))
        there = [block for block, name in blocks if name not in missing]
        pool.mark_copied(there)
        pool.moved[[block for block in there if not pool.moved[block]]] = stored_in(self._ranks[tier.name])
        room = bool(missing) and self._make_room(tier, len(missing), [name for _, name in blocks])
        if room:
            numbers, names = zip(*(each for each in blocks if each[1] in missing), strict=True)
            pool.hold(numbers)
            self._begin_store(tier.name, names, numbers, list(numbers), None)
        return room or bool(there)

    def keep(self, request: Request) -> None:
        """Store the published blocks of a request that ends in the persistent tiers, and send the last."""
        self.sending.finish(request)
        computed = (len(request.tokens) - 1) // self._kv.pool.block_size  # a later step may be in flight
        full = min(request.published, computed)
        published = self._kv.named(request, full)
        if (
            not published
            or request.epoch != self._kv.epoch
            or request.chat is None
            or not self._rules.prefix_cache
        ):
            return
        for tier in (each for each in self._keeping if each.persistent):
            if not self._loading_pays(tier, len(published)):
                tier.cost.doubt()
                continue
            self.copy(tier, published, request)
            if request.chat:
                self._order("own", tier.name, tuple(name for name, _ in published), owner=request.chat)

    def copy(
        self, tier: Tier, blocks: Sequence[tuple[BlockName, int]], owner: Request
    ) -> tuple[TransferOrder | None, int]:
        """Store the blocks that the tier lacks, while their request continues. Returns the order, and how
        many had no room. The first ones are stored, because the others are useless without them.
        """
        missing = set(self._missing(tier, [name for name, _ in blocks]))
        fresh = [each for each in blocks if each[0] in missing]
        fresh, left = fresh[: (room := max(0, self._room(tier)))], max(0, len(fresh) - room)
        if not fresh:
            return None, left
        names, numbers = zip(*fresh, strict=True)
        self._kv.pool.share(numbers)
        return self._begin_store(tier.name, names, numbers, list(numbers), owner), left

    def _loading_pays(self, tier: Tier, blocks: int) -> bool:
        tokens = blocks * self._kv.pool.block_size // self._kv.group_count
        return tier.size > 0 and self._costs.loading_pays(tier.cost.back(blocks), tokens, self._rules)

    def _missing(self, tier: Tier, names: Sequence[BlockName]) -> list[BlockName]:
        """The names that are neither in the tier nor on their way there."""
        going = self._going(tier.name)
        return [
            name
            for name in names
            if not self.residence.expects(tier.name, name) and (name in going or not tier.holds([name]))
        ]

    def _make_room(self, tier: Tier, count: int, keep: Sequence[BlockName]) -> bool:
        """Whether the tier can take `count` blocks; drops the oldest ones other than `keep` if necessary."""
        room = self._room(tier)
        if room >= count:
            return True
        if room + self.residence.idle(tier.name) < count:
            return False
        dropped = self.residence.take_idle(tier.name, count - room, keep)
        if dropped:
            self._order("release", tier.name, dropped)
        return room + len(dropped) >= count

    def _room(self, tier: Tier) -> int:
        """How many more blocks the tier can take once it has the orders that are not sent yet."""
        room = tier.room()
        for order in self.orders:
            if order.tier == tier.name and order.kind in ("store", "release"):
                room += len(order.names) * (1 if order.kind == "release" else -1)
        return room

    def _store_victim(
        self, tier: str, victim: Request, names: tuple[BlockName, ...], missing: set[BlockName]
    ) -> None:
        pool, count = self._kv.pool, len(names) + victim.gone
        written, rest = held(victim.blocks[:count]), victim.blocks[count:]
        fresh = [(name, block) for name, block in zip(names, written, strict=True) if name in missing]
        self._kv.rewind(victim, len(victim.tokens))  # unverified drafts are lost
        victim.blocks, victim.stored = [], Stored(tier, names, trimmed=victim.trimmed)
        self.residence.retain(tier, names)
        pool.free(rest)
        if not fresh:
            pool.free(written)
            return
        stored, blocks = zip(*fresh, strict=True)
        order = self._begin_store(tier, stored, blocks, written, victim)
        victim.stored = victim.stored._replace(transfer=order.id)

    def _begin_store(
        self,
        tier: str,
        names: tuple[BlockName, ...],
        blocks: tuple[int, ...],
        held: list[int],
        request: Request | None,
    ) -> TransferOrder:
        self.residence.storing(tier, names)
        order = self._order("store", tier, names, blocks)
        self.in_flight[order.id] = Moving(order, held, request)
        return order

    # Loading

    def find(self, request: Request, rows: int = 0) -> FoundBlocks:
        """The blocks of a request's prefix: on the device, then in the tier that has most of the others.

        `rows`: how many requests run.
        """
        kv, stored = self._kv, request.stored
        if stored is not None and (moving := self.in_flight.get(stored.transfer)):  # still on the device
            whole = kv.pool.block_size if kv.keeps_state else 1  # a step would change a state that is copied
            tokens = request.launched // whole * whole
            hits = kv.groups.spread(moving.blocks, tokens, stored.trimmed)
            return FoundBlocks(hits, tokens, trimmed=stored.trimmed)
        cached = self._rules.prefix_cache and (stored is None or request.epoch == kv.epoch)
        hits = kv.find(request) if cached else []
        below = finding.below(kv, request, hits, cached, self.tiers.values(), self._loadable)
        tokens = len(hits) // kv.group_count * kv.pool.block_size
        if below is None:
            return FoundBlocks(hits, tokens, trimmed=tokens)
        tier, more, count = below.tier, below.tokens, len(below.names)
        seconds = max(tier.cost.back(count) + self._costs.wait(rows), request.waited)
        # What other engines have sent is loaded: computing it would delay the replies that they spare.
        worth = tier.transit or self._costs.loading_pays(seconds, more - tokens, self._rules)
        pays = worth and not request.waited
        offer = TierOffer(tier.name, more - tokens, pays, seconds, self._costs.recompute(more - tokens))
        if not pays:
            return FoundBlocks(hits, tokens, offer=offer, trimmed=tokens)
        return FoundBlocks(below.hits, more, tier.name, below.names, offer, below.trimmed)

    def _loadable(self, tier: str, names: Sequence[BlockName]) -> Sequence[BlockName]:
        """The prefix of `names` whose blocks are complete in the tier and not about to be dropped."""
        names = self.residence.usable(tier, names)
        if going := self._going(tier):
            return names[: front(names, lambda name: name not in going)]
        return names

    def _going(self, tier: str) -> set[BlockName]:
        """The names that orders not yet sent drop."""
        return {
            name
            for each in self.orders
            if each.tier == tier and each.kind in ("release", "forget")
            for name in each.names
        }

    def begin(self, request: Request, found: FoundBlocks) -> bool:
        """Give the request the blocks found. False if it cannot run yet, because more are loading."""
        self._kv.adopt(request, found.hits, found.trimmed)
        request.launched = found.tokens
        if not request.preemptions:
            request.offer = found.offer
        if (offer := found.offer) and not offer.loaded:
            self.tiers[offer.tier].cost.doubt()
        if request.stored is not None:
            request.published = 0  # its blocks are different ones now
        if found.names:
            pool = self._kv.pool
            blocks = self._kv.take_lacking(request, found.tokens)
            pool.share(blocks)
            self.residence.retain(found.tier, found.names)
            order = self._order("load", found.tier, found.names, tuple(blocks))
            self.in_flight[order.id] = self.loading[request.id] = Moving(order, blocks, request)
        self.release(request)
        return not found.names

    # The end of a transfer or of a request

    def end(self, end: TransferEnd) -> Moving:
        """Handle the end of a store or load: release the blocks that the transfer held."""
        moving = self.in_flight.pop(end.id)
        waits = self.awaited_by(moving)
        order, loads = moving.order, moving.order.kind == "load"
        if not end.error:
            rank = self._ranks[order.tier]
            self._kv.pool.moved[list(order.blocks)] = loaded_from(rank) if loads else stored_in(rank)
        if moving.request is None:
            self._kv.pool.put_back(moving.blocks, copied=not end.error)
            self.failed_sinks += bool(end.error)
        else:
            self._kv.pool.free(moving.blocks)
        if end.error:
            self.residence.lose(order.tier, order.names)
        else:
            seconds = max(end.seconds, moving.ordering)
            self.tiers[order.tier].cost.observe(len(order.names), seconds, load=loads)
        if loads:
            assert moving.request is not None
            self._release(order.tier, order.names)
            if waits is not None and self.leave(waits) and not end.error:
                self.loaded.append(waits)
        else:
            self._settle(order.tier, self.residence.stored(order.tier, order.names))
            self.sending.end(end)
        return moving

    def awaited_by(self, moving: Moving) -> Request | None:
        """The request that waits for this transfer."""
        request = moving.request
        return request if request is not None and self.loading.get(request.id) is moving else None

    def saved(self, request: Request) -> float:
        """At least how many seconds loading blocks saved the request, by what is measured now."""
        if (offer := request.offer) is None or not offer.loaded:
            return 0.0
        loading = self.tiers[offer.tier].cost.load.whole(self._kv.blocks_for(offer.tokens))
        return max(0.0, self._costs.least(offer.tokens, self._rules) - loading)

    def leave(self, request: Request) -> bool:
        """Remove a request that ends. Returns whether it was loading or loaded; its transfer continues."""
        if request in self.loaded:
            self.loaded.remove(request)
            return True
        return self.loading.pop(request.id, None) is not None

    def release(self, request: Request) -> None:
        """Release the request's stored blocks."""
        if request.stored is not None:
            stored, request.stored = request.stored, None
            self._release(stored.tier, stored.names)

    def forget(self, request: Request) -> None:
        """Make all blocks the request computed unfindable, because they may be wrong."""
        self.sending.cancel(request)
        pool = self._kv.pool
        pool.forget(request.blocks)
        pool.forget(self._kv.still_cached(request))
        for moving in self.in_flight.values():
            if moving.request is request:
                pool.forget(moving.blocks)
        names = self._kv.keys(request) if request.stored is None else request.stored.names
        for tier in self.tiers.values():
            missing = set(self._missing(tier, names))
            self._lose(tier.name, [name for name in names if name not in missing])

    def _lose(self, tier: str, names: Sequence[BlockName]) -> None:
        """Have the tier forget blocks that may be wrong, now or once nothing uses them."""
        self.residence.lose(tier, names)
        self._settle(tier, self.residence.unused(tier, names))

    def reset(self) -> None:
        """Drop all blocks that no request relies on, because the cache was emptied."""
        assert not self.pending, "a transfer is in flight"
        for tier in self.tiers:
            if names := self.residence.take_idle(tier, self.residence.idle(tier), ()):
                self._order("release", tier, names)
        self.residence.clear()

    def clear(self) -> None:
        """Drop all transfers, because the engine is dead."""
        for each in (self.orders, self.in_flight, self.loading, self.loaded, self.residence, self.sending):
            each.clear()

    def _release(self, tier: str, names: Sequence[BlockName]) -> None:
        self._settle(tier, self.residence.release(tier, names))

    def _settle(self, tier: str, unused: Sequence[BlockName]) -> None:
        """Have the tier forget unused blocks that are lost; keep the others, if they can be found again."""
        persistent, cached = self.tiers[tier].persistent, self._rules.prefix_cache
        lost = self.residence.settle(tier, unused, keep=cached and not persistent)
        if lost:
            self._order("forget", tier, lost)
        kept = tuple(name for name in unused if name not in lost)
        if kept and not persistent and not cached:
            self._order("release", tier, kept)

    def _order(
        self,
        kind: TransferKind,
        tier: str,
        names: tuple[BlockName, ...],
        blocks: tuple[int, ...] = (),
        owner: str = "",
    ) -> TransferOrder:
        order = TransferOrder(next(self._ids), kind, tier, names, blocks, owner)
        self.orders.append(order)
        return order
