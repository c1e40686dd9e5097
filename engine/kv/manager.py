"""Which blocks each request holds, and the names of what is in them."""

from collections.abc import Iterable, Sequence

from engine.api.config import KvSchemeName
from engine.api.request import Request
from engine.kv import prefix
from engine.kv.pool import BlockPool
from engine.kv.tables import BlockTables
from engine.kv.window import GONE, Window, held


class KVManager:
    """Takes, shares and gives back blocks for requests, and names those whose tokens others may find."""

    def __init__(
        self,
        pool: BlockPool,
        tables: BlockTables,
        kv_scheme: KvSchemeName,
        window: Window | None,
    ) -> None:
        self.pool, self.tables, self.window = pool, tables, window
        self.kv_scheme = kv_scheme  # of the cache: another one rounds otherwise, and makes another prefix
        self.epoch = 0  # of the weights: a prefix computed with others is another prefix

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.pool.block_size)

    # A row in the tables

    def open(self, request: Request) -> None:
        """A row for a request that starts to run."""
        request.slot = self.tables.open([max(block, 0) for block in request.blocks])  # of none, nobody reads

    def close(self, request: Request) -> None:
        self.tables.close(request.slot)
        request.slot = -1

    def lengthen(self, request: Request, count: int) -> None:
        """So many blocks more for one that runs."""
        at = len(request.blocks)
        fresh = self.pool.take(count, request.id, at)
        self.tables.write(request.slot, at, fresh)
        request.blocks += fresh

    def cut(self, request: Request) -> None:
        """Only what the tokens that are known need, of a reply that drafts have made too long."""
        if request.slot >= 0:
            keep = self.blocks_for(request.known)
            self.pool.give_back(request.blocks[keep:])
            del request.blocks[keep:]

    def moved(self, request: Request, moves: dict[int, int]) -> None:
        """Some of its blocks may lie elsewhere now."""
        if not moves.keys().isdisjoint(request.blocks):
            request.blocks = [moves.get(block, block) for block in request.blocks]
            self.tables.write(request.slot, 0, [max(block, 0) for block in request.blocks])

    def release(self, request: Request) -> None:
        self.pool.give_back(held(request.blocks))
        request.blocks, request.published, request.shares_tail = [], 0, False
        request.gone = 0

    def recache(self, scheme: KvSchemeName, blocks: int) -> None:
        """Begins with an empty cache of another form; no request may hold any of the old one."""
        assert not self.pool.in_use, "a request holds blocks of the cache that goes"
        self.kv_scheme = scheme
        self.pool.reset(blocks)

    def clear(self) -> None:
        """As if nobody had ever held any."""
        self.tables.clear()
        self.pool.reset(self.pool.size)

    # What it needs

    def needs(self, request: Request, hits: list[int]) -> int:
        """Blocks, beside those found, that it needs at its fullest before it decodes."""
        whole = self.blocks_for(request.known)
        if self.window is None:
            return whole - len(hits)
        return max(0, min(whole, self.window.peak) - len(held(hits)))

    def missing(self, request: Request) -> int:
        """Of those, what it does not have yet."""
        count = max(0, self.blocks_for(request.known) - len(request.blocks))
        if self.window is not None and count:
            count = min(count, max(1, self.window.peak - len(request.blocks) + request.gone))
        return count

    def spare(self, hits: list[int]) -> int:
        """Blocks that can be taken when those found are in use again."""
        return self.pool.available - sum(not self.pool.refs[block] for block in held(hits))

    def draft_room(self, request: Request, running: int) -> int:
        """How many drafts there is room for, without a reply too long and without another's block."""
        cells = len(request.blocks) * self.pool.block_size
        if self.pool.available > running:
            cells += self.pool.block_size
        return min(cells - request.launched, request.max_len - request.known) - 1

    # Several that hold the same

    def may_share(self, parent: Request, tokens: int) -> bool:
        """Whether there is a row for a child with so many tokens, and its parent has let none of them go."""
        if parent.slot < 0 or not self.tables.free:
            return False
        if self.window is None:
            return True
        return self.window.start(min(parent.launched, tokens - 1)) >= self.window.first + parent.gone

    def share(self, parent: Request, child: Request) -> None:
        """The child draws for itself after its last token, so it computes that one."""
        child.launched = min(parent.launched, len(child.tokens) - 1)
        child.blocks = parent.blocks[: self.blocks_for(child.launched)]
        child.gone = child.blocks.count(GONE)
        self.pool.share(held(child.blocks))
        child.shares_tail = parent.shares_tail = True
        child.chain = parent.chain[: child.launched // self.pool.block_size]
        child.published = min(parent.published, len(child.chain))
        child.epoch = parent.epoch

    def shared_tail(self, request: Request) -> int | None:
        """The half-full block it is about to write to, where somebody else holds that too."""
        if request.launched % self.pool.block_size == 0:
            request.shares_tail = False
            return None
        block = request.blocks[request.launched // self.pool.block_size]
        request.shares_tail = self.pool.is_shared(block)
        return block if request.shares_tail else None

    def part(self, request: Request, block: int) -> int:
        """A block of its own in place of one that it shares."""
        at = request.blocks.index(block)
        [fresh] = self.pool.take(1, request.id, at)
        self.pool.give_back([block])
        request.blocks[at] = fresh
        self.tables.write(request.slot, at, [fresh])
        request.shares_tail = False
        return fresh

    # What can be found again

    def find(self, request: Request) -> list[int]:
        """The blocks that hold its beginning already. At least one token is left to compute."""
        most = (len(request.tokens) - 1) // self.pool.block_size
        self._name(request, most)
        if self.window is not None:
            return self._find_in(self.window, request.chain[:most])
        hits = []
        for key in request.chain[:most]:
            if (block := self.pool.find(key)) is None:
                break
            hits.append(block)
        return hits

    def _find_in(self, window: Window, chain: list[bytes]) -> list[int]:
        """The blocks to go on from: those that the next token sees. What has left the window may be lost."""
        found = [self.pool.find(key) for key in chain]
        count = window.longest_found(found)
        start = window.start(count * self.pool.block_size)
        return [
            GONE if block is None or window.first <= at < start else block
            for at, block in enumerate(found[:count])
        ]

    def begin_anew(self, request: Request) -> None:
        """It holds nothing: all that it will hold is of the present weights."""
        if request.epoch != self.epoch:
            request.epoch, request.chain = self.epoch, []

    def adopt(self, request: Request, hits: list[int]) -> None:
        """It begins with what was found."""
        self.pool.share(held(hits))
        request.blocks = hits
        request.gone = hits.count(GONE)
        request.published = len(hits)
        request.launched = len(hits) * self.pool.block_size

    def publish(self, request: Request, full: int) -> None:
        """Its first blocks, all full, may be found by others from now on."""
        self._name(request, full)
        for at in range(request.published, full):
            if request.blocks[at] != GONE:
                self.pool.publish(request.blocks[at], request.chain[at])
        request.published = max(request.published, full)  # fewer may be launched again after a preemption

    def reweigh(self) -> None:
        """The weights are others now. What was cached is forgotten; who holds blocks goes on with them."""
        self.epoch += 1
        self.pool.forget_all()

    def names(self, request: Request) -> tuple[bytes, ...]:
        """Of all blocks that it has written, the last one by what is in it so far.

        Empty where tokens do not say what is in them: older weights wrote some, or others write to one.
        """
        size, tokens = self.pool.block_size, request.tokens[: request.launched]
        if not tokens or request.gone or request.shares_tail or request.epoch != self.epoch:
            return ()
        full = len(tokens) // size
        self._name(request, full)
        names = request.chain[:full]
        if rest := tokens[full * size :]:
            names.append(prefix.extend(names[-1] if names else self._root(request), rest))
        return tuple(names)

    def _name(self, request: Request, count: int) -> None:
        prefix.lengthen(request.chain, self._root(request), request.tokens, self.pool.block_size, count)

    def _root(self, request: Request) -> bytes:
        return prefix.root(self.epoch, self.kv_scheme, request.salt)

    # What it gives up

    def let_go(self, request: Request, window: Window) -> None:
        """Gives back the blocks that none of its tokens to come sees. They stay findable, if they were."""
        past = slice(window.first + request.gone, self._start(request, window))
        if going := request.blocks[past]:
            self.pool.let_go(going)
            request.blocks[past] = [GONE] * len(going)
            request.gone += len(going)

    def _start(self, request: Request, window: Window) -> int:
        """Where drafts are taken back, or its last token is computed again, it goes on from there."""
        return window.start(min(request.launched, len(request.tokens) - 1))

    # The proof

    def check(self, requests: Iterable[Request], moving: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError where blocks and tables disagree, or a request lacks a block that it sees.

        `moving`: the blocks of each transfer.
        """
        alive = list(requests)
        self.pool.check({each.id: each.blocks for each in alive}, moving)
        running = [each for each in alive if each.slot >= 0]
        slots = {each.slot for each in running}
        assert len(slots) == len(running) == len(self.tables.grid) - self.tables.free, "a row is lost"
        for each in running:
            self._check_row(each)

    def _check_row(self, each: Request) -> None:
        row = self.tables.grid[each.slot, : len(each.blocks)].tolist()
        same = all(block in (there, GONE) for there, block in zip(row, each.blocks, strict=True))
        assert same, f"request {each.id}: table {row}, blocks {each.blocks}"
        assert len(each.blocks) >= self.blocks_for(each.launched), f"request {each.id} lacks a block"
        assert each.blocks.count(GONE) == each.gone, f"request {each.id} has lost count: {each.blocks}"
        if self.window is None:
            assert not each.gone, f"request {each.id} lets go of blocks without a window"
            return
        first, start = self.window.first, self._start(each, self.window)
        for at, block in enumerate(each.blocks):
            assert block != GONE or first <= at < start, f"request {each.id} lacks its block {at}"
