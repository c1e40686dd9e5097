"""Which blocks each request holds, and the hashes of their contents."""

import secrets
from collections.abc import Iterable, Sequence

from engine.api.config import KvSchemeName
from engine.api.request import Request
from engine.kv import prefix
from engine.kv.pool import BlockPool
from engine.kv.tables import BlockTables
from engine.kv.window import GONE, Window, held


class KVManager:
    """Takes, shares and releases blocks for requests, and hashes the blocks of reusable prefixes."""

    def __init__(
        self,
        pool: BlockPool,
        tables: BlockTables,
        kv_scheme: KvSchemeName,
        window: Window | None,
    ) -> None:
        self.pool, self.tables, self.window = pool, tables, window
        self.model = secrets.token_bytes(16)  # not known: no other process finds these blocks
        self._private = b""  # set while no other process shall find blocks
        self.weights = "none"
        self.kv_scheme = kv_scheme
        self.epoch = 0  # how often the weights have changed

    def identify(self, model: bytes, weights: str) -> None:
        """Name blocks by what computes them: `model` is a hash of it, apart from the two schemes."""
        self.model, self.weights = model, weights

    def hide_names(self, hide: bool) -> None:
        """Name blocks so that none stored before are found, or end that. Cached blocks are forgotten."""
        self._private = secrets.token_bytes(16) if hide else b""
        self.pool.forget_all()

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.pool.block_size)

    # The request's row in the block tables

    def open(self, request: Request) -> None:
        """Give a slot to a request that starts to run."""
        request.slot = self.tables.open([max(block, 0) for block in request.blocks])  # GONE is never read

    def close(self, request: Request) -> None:
        self.tables.close(request.slot)
        request.slot = -1

    def allocate(self, request: Request, count: int) -> None:
        """Give `count` more blocks to a running request."""
        at = len(request.blocks)
        fresh = self.pool.allocate(count, request.id, at)
        self.tables.write(request.slot, at, fresh)
        request.blocks += fresh

    def drop_draft_blocks(self, request: Request) -> None:
        """Release the blocks beyond the known tokens, which were taken for drafts."""
        if request.slot >= 0:
            keep = self.blocks_for(request.known)
            self.pool.free(request.blocks[keep:])
            del request.blocks[keep:]

    def apply_moves(self, request: Request, moves: dict[int, int]) -> None:
        """Update the request's blocks after a resize moved some."""
        if not moves.keys().isdisjoint(request.blocks):
            request.blocks = [moves.get(block, block) for block in request.blocks]
            self.tables.write(request.slot, 0, [max(block, 0) for block in request.blocks])

    def release(self, request: Request) -> None:
        self.pool.free(held(request.blocks))
        request.blocks, request.published, request.shares_tail = [], 0, False
        request.gone = 0

    def recache(self, scheme: KvSchemeName, blocks: int) -> None:
        """Start with an empty cache in another scheme. No request may hold blocks."""
        assert not self.pool.in_use, "a request holds blocks of the old cache"
        self.kv_scheme = scheme
        self.pool.reset(blocks)

    def clear(self) -> None:
        """Reset to a state in which no request holds blocks."""
        self.tables.clear()
        self.pool.reset(self.pool.size)

    # What a request needs

    def needs(self, request: Request, hits: list[int]) -> int:
        """Blocks the request needs in addition to `hits`, at its peak before it decodes."""
        whole = self.blocks_for(request.known)
        if self.window is None:
            return whole - len(hits)
        return max(0, min(whole, self.window.peak) - len(held(hits)))

    def missing(self, request: Request) -> int:
        """How many of the blocks needed before decode the request does not have yet."""
        count = max(0, self.blocks_for(request.known) - len(request.blocks))
        if self.window is not None and count:
            count = min(count, max(1, self.window.peak - len(request.blocks) + request.gone))
        return count

    def spare(self, hits: list[int]) -> int:
        """Blocks that can be taken once `hits` are in use again."""
        return self.pool.available - sum(not self.pool.refs[block] for block in held(hits))

    def draft_room(self, request: Request, running: int) -> int:
        """How many drafts fit within the reply's limit, without a block another row needs."""
        cells = len(request.blocks) * self.pool.block_size
        if self.pool.available > running:
            cells += self.pool.block_size
        return min(cells - request.launched, request.max_len - request.known) - 1

    # Shared blocks

    def may_share(self, parent: Request, tokens: int) -> bool:
        """Whether a slot is free for the child and the parent still has every block the child needs."""
        if parent.slot < 0 or not self.tables.free:
            return False
        if self.window is None:
            return True
        return self.window.start(min(parent.launched, tokens - 1)) >= self.window.first + parent.gone

    def share(self, parent: Request, child: Request) -> None:
        """Share the parent's blocks with the child, which recomputes its last token to sample from it."""
        child.launched = min(parent.launched, len(child.tokens) - 1)
        child.blocks = parent.blocks[: self.blocks_for(child.launched)]
        child.gone = child.blocks.count(GONE)
        self.pool.share(held(child.blocks))
        child.shares_tail = parent.shares_tail = True
        child.chain = parent.chain[: child.launched // self.pool.block_size]
        child.published = min(parent.published, len(child.chain))
        child.epoch = parent.epoch

    def shared_tail(self, request: Request) -> int | None:
        """The partly filled block the request will write to next, if another request holds it too."""
        if request.launched % self.pool.block_size == 0:
            request.shares_tail = False
            return None
        block = request.blocks[request.launched // self.pool.block_size]
        request.shares_tail = self.pool.is_shared(block)
        return block if request.shares_tail else None

    def unshare(self, request: Request, block: int) -> int:
        """Replace a shared block with a fresh one of the request's own, and return the fresh block."""
        at = request.blocks.index(block)
        [fresh] = self.pool.allocate(1, request.id, at)
        self.pool.free([block])
        request.blocks[at] = fresh
        self.tables.write(request.slot, at, [fresh])
        request.shares_tail = False
        return fresh

    # Prefix cache

    def reusable(self, request: Request) -> int:
        """How many blocks the request need not compute: others have positions whose logits it needs."""
        tokens = request.scored if request.scored < request.prompt_len else len(request.tokens)
        return (tokens - 1) // self.pool.block_size

    def find(self, request: Request) -> list[int]:
        """The cached blocks of the request's prefix. At least one token is left to compute."""
        most = self.reusable(request)
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
        """The cached blocks the next token sees. Blocks that left the window may be missing."""
        found = [self.pool.find(key) for key in chain]
        count = window.longest_found(found)
        start = window.start(count * self.pool.block_size)
        return [
            GONE if block is None or window.first <= at < start else block
            for at, block in enumerate(found[:count])
        ]

    def reset_prefix(self, request: Request) -> None:
        """Reset the prefix hashes of a request that holds nothing if the weights have changed."""
        if request.epoch != self.epoch:
            request.epoch, request.chain = self.epoch, []

    def adopt(self, request: Request, hits: list[int]) -> None:
        """Start a request with the cached blocks that were found."""
        self.pool.share(held(hits))
        request.blocks = hits
        request.gone = hits.count(GONE)
        request.published = len(hits)
        request.launched = len(hits) * self.pool.block_size

    def publish(self, request: Request, full: int) -> None:
        """Make the request's first `full` blocks findable; all of them are full."""
        self._name(request, full)
        for at in range(request.published, full):
            if request.blocks[at] != GONE:
                self.pool.publish(request.blocks[at], request.chain[at])
        request.published = max(request.published, full)  # fewer may be launched after a preemption

    def weights_changed(self, scheme: str) -> None:
        """Note the weights' new scheme. Forget cached blocks; requests keep the blocks they hold."""
        self.weights = scheme
        self.epoch += 1
        self.pool.forget_all()

    def names(self, request: Request) -> tuple[bytes, ...]:
        """The hashes of all blocks the request has written, including the last, partly filled one.

        Empty if tokens alone do not identify the contents: blocks from older weights, or a shared last block.
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
        prefix.extend_chain(request.chain, self._root(request), request.tokens, self.pool.block_size, count)

    def _root(self, request: Request) -> bytes:
        return prefix.root(self.model, self._private, self.weights, self.kv_scheme, request.salt)

    # Blocks outside the window

    def trim_window(self, request: Request, window: Window) -> None:
        """Release blocks that no later token of the request sees. Cached ones remain findable."""
        past = slice(window.first + request.gone, self._start(request, window))
        if going := request.blocks[past]:
            self.pool.leave_window(going)
            request.blocks[past] = [GONE] * len(going)
            request.gone += len(going)

    def _start(self, request: Request, window: Window) -> int:
        """The first visible block if drafts are rejected or the last token is recomputed."""
        return window.start(min(request.launched, len(request.tokens) - 1))

    # Consistency check

    def check(self, requests: Iterable[Request], moving: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError if blocks and tables disagree, or a request lacks a block it needs.

        `moving`: the blocks of each transfer.
        """
        alive = list(requests)
        self.pool.check({each.id: each.blocks for each in alive}, moving)
        running = [each for each in alive if each.slot >= 0]
        slots = {each.slot for each in running}
        assert len(slots) == len(running) == len(self.tables.grid) - self.tables.free, "a slot is lost"
        for each in running:
            self._check_row(each)

    def _check_row(self, each: Request) -> None:
        row = self.tables.grid[each.slot, : len(each.blocks)].tolist()
        same = all(block in (there, GONE) for there, block in zip(row, each.blocks, strict=True))
        assert same, f"request {each.id}: table {row}, blocks {each.blocks}"
        assert len(each.blocks) >= self.blocks_for(each.launched), f"request {each.id} lacks a block"
        assert each.blocks.count(GONE) == each.gone, f"request {each.id} has lost count: {each.blocks}"
        if self.window is None:
            assert not each.gone, f"request {each.id} released blocks without a window"
            return
        first, start = self.window.first, self._start(each, self.window)
        for at, block in enumerate(each.blocks):
            assert block != GONE or first <= at < start, f"request {each.id} lacks its block {at}"
