"""Which blocks each request holds."""

import secrets
import sys
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from engine.api.cache_spec import KvSchemeName
from engine.api.request import Evidence, Request
from engine.kv.eviction import TokenBudget, evictions
from engine.kv.groups import BlockGroups
from engine.kv.naming import BlockNames
from engine.kv.pool import BlockPool
from engine.kv.tables import BlockTables
from engine.kv.window import GONE, Window, held


class KVManager(BlockNames):
    """Takes, shares and releases blocks for requests, and finds the blocks of reusable prefixes."""

    def __init__(
        self,
        pool: BlockPool,
        tables: BlockTables,
        kv_scheme: KvSchemeName,
        groups: BlockGroups | None = None,
        budget: TokenBudget | None = None,
        *,
        keeps_state: bool = False,
    ) -> None:
        """`keeps_state`: blocks also hold a recurrent state, that after the last token written in each."""
        super().__init__(groups or BlockGroups(pool.block_size), kv_scheme)
        self.keeps_state = keeps_state
        self.pool, self.tables, self.budget = pool, tables, budget
        # Tokens for each block of a request. Slightly less than a fraction, so that no sum is rounded up.
        groups_share = pool.block_size / self.group_count * (1 - 1e-12)
        self.cells = pool.block_size if self.group_count == 1 else groups_share
        self._windows: dict[Window, list[int]] = {}  # and the groups that have it
        for group, window in enumerate(self.groups.windows):
            if window is not None:
                self._windows.setdefault(window, []).append(group)
        self._reports: dict[bytes, np.ndarray] = {}  # with a budget: of published blocks, by name

    def hide_names(self, hide: bool) -> None:
        """Name blocks so that none stored before are found, or end that. Cached blocks are forgotten."""
        self.private = secrets.token_bytes(16) if hide else b""
        self.pool.forget_all()

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.pool.block_size) * self.group_count

    def rewind(self, request: Request, tokens: int) -> None:
        """Go back to at most this many computed tokens."""
        request.launched = self.resumable(request.launched, min(tokens, request.launched))

    def resumable(self, launched: int, tokens: int) -> int:
        """The most tokens, up to `tokens`, whose blocks can be used, when `launched` have been computed.

        A recurrent state exists only after the last token of each block.
        """
        if not self.keeps_state or tokens == launched:
            return tokens
        return tokens // self.pool.block_size * self.pool.block_size

    # The request's row in the block tables

    def open(self, request: Request) -> None:
        """Give a slot to a request that starts to run."""
        request.slot = self.tables.open(self._row(request))

    def close(self, request: Request) -> None:
        self.tables.close(request.slot)
        request.slot = -1

    def allocate(self, request: Request, count: int) -> None:
        """Give `count` more blocks to a running request."""
        at, groups = len(request.blocks), self.group_count
        if groups == 1:
            fresh = self.pool.allocate(count, request.id, at)
        else:  # neighbors in a group are neighbors in memory
            places = [place for group in range(groups) for place in range(at + group, at + count, groups)]
            taken = zip(places, self.pool.allocate_at(places, request.id), strict=True)
            fresh = [block for _, block in sorted(taken)]
        self._write(request, at, fresh)
        request.blocks += fresh

    def drop_draft_blocks(self, request: Request) -> None:
        """Release the blocks beyond the known tokens, which were taken for drafts."""
        if request.slot >= 0:
            keep = self.blocks_for(request.known)
            self.pool.free(request.blocks[keep:])
            del request.blocks[keep:]
            if self.budget is not None:
                request.evidence = request.evidence.before(request.launched // self.pool.block_size)

    def apply_moves(self, request: Request, moves: dict[int, int]) -> None:
        """Update the request's blocks after a resize moved some."""
        if not moves.keys().isdisjoint(request.blocks):
            request.blocks = [moves.get(block, block) for block in request.blocks]
            self.tables.write(request.slot, 0, self._row(request))

    def _row(self, request: Request) -> list[int]:
        """The request's row of the tables. Blocks that left a window stay in it but are never read."""
        return held(request.blocks) if self.budget else [max(block, 0) for block in request.blocks]

    def _write(self, request: Request, at: int, blocks: list[int]) -> None:
        self.tables.write(request.slot, at - request.skipped // self.pool.block_size, blocks)

    def release(self, request: Request) -> None:
        self.pool.free(held(request.blocks))
        request.blocks, request.published, request.shares_tail = [], 0, False
        request.gone = request.skipped = request.trimmed = 0
        request.evidence = Evidence()

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
        if self._most is None:
            return whole - len(hits)
        return max(0, self._most(whole) - len(held(hits)))

    def missing(self, request: Request) -> int:
        """How many of the blocks needed before decode the request does not have yet."""
        whole = self.blocks_for(request.known)
        count = max(0, whole - len(request.blocks))
        if self._most is not None and count:
            count = min(count, max(self.group_count, self._most(whole) - len(request.blocks) + request.gone))
        return count

    @property
    def _most(self) -> Callable[[int], int] | None:
        """The most blocks that a request with so many tokens for blocks holds at a time; None: all."""
        if self.budget is not None:
            return partial(min, self.budget.peak)
        return self.groups.most if self._windows else None

    def longest_chunk(self, position: int) -> int:
        """How many tokens from `position` on may be computed in one step."""
        if self._windows:
            return min(window.longest for window in self._windows)
        return sys.maxsize if self.budget is None else self.budget.until_due(position)

    def spare(self, hits: list[int]) -> int:
        """Blocks that can be taken once `hits` are in use again."""
        return self.pool.available - sum(not self.pool.refs[block] for block in held(hits))

    def draft_room(self, request: Request, running: int) -> int:
        """How many drafts fit within the reply's limit, without a block another row needs."""
        cells = len(request.blocks) // self.group_count * self.pool.block_size
        if self.pool.available // self.group_count > running:
            cells += self.pool.block_size
        most = min(cells - request.launched, request.max_len - request.known)
        if self.budget is not None:
            most = min(most, self.budget.until_due(request.launched))
        return most - 1

    # Shared blocks

    def may_share(self, parent: Request, tokens: int) -> bool:
        """Whether a slot is free for the child and the parent still has every block the child needs."""
        if parent.slot < 0 or not self.tables.free:
            return False
        launched = min(parent.launched, tokens - 1)
        if self.budget is not None:
            size, evidence = self.pool.block_size, parent.evidence
            return launched >= evidence.at and evidence.covers(launched // size, size)
        return all(window.start(launched) >= window.start(parent.trimmed) for window in self._windows)

    def share(self, parent: Request, child: Request) -> None:
        """Share the parent's blocks with the child, which recomputes its last token to sample from it."""
        child.launched = self.resumable(parent.launched, min(parent.launched, len(child.tokens) - 1))
        child.blocks = parent.blocks[: self.blocks_for(child.launched)]
        child.gone, child.skipped = child.blocks.count(GONE), parent.skipped
        child.trimmed = parent.trimmed
        child.evidence = parent.evidence.before(child.launched // self.pool.block_size)
        self.pool.share(held(child.blocks))
        child.shares_tail = parent.shares_tail = True
        child.chain = parent.chain[: child.launched // self.pool.block_size]
        child.published = min(parent.published, len(child.chain))
        child.epoch = parent.epoch

    def shared_tails(self, request: Request) -> list[int]:
        """The partly filled blocks the request will write to next, if others also hold them."""
        full, filled = divmod(request.launched, self.pool.block_size)
        tails = request.blocks[full * self.group_count : (full + 1) * self.group_count] if filled else []
        tails = [block for block in tails if self.pool.is_shared(block)]
        request.shares_tail = bool(tails)
        return tails

    def unshare(self, request: Request, block: int) -> int:
        """Replace a shared block with a fresh one of the request's own, and return the fresh block."""
        at = request.blocks.index(block)
        [fresh] = self.pool.allocate(1, request.id, at)
        self.pool.free([block])
        request.blocks[at] = fresh
        self._write(request, at, [fresh])
        request.shares_tail = False
        return fresh

    # Prefix cache

    def reusable(self, request: Request) -> int:
        """How many blocks of the prefix can be reused. Positions whose logits it needs are computed."""
        tokens = request.scored if request.scored < request.prompt_len else len(request.tokens)
        return (tokens - 1) // self.pool.block_size

    def find(self, request: Request) -> list[int]:
        """The cached blocks of the request's prefix. At least one token is left to compute."""
        most = self.reusable(request)
        self.extend_chain(request, most)
        if self._windows:
            count = self.groups.longest(most, lambda at: self.cached(request, at) is not None)
            return self.found(request, count * self.pool.block_size)
        if self.budget is not None:
            most = min(most, self.budget.peak - 1)  # the next token is computed before any block is evicted
        hits = []
        for key in request.chain[:most]:
            if (block := self.pool.find(key)) is None or (self.budget and key not in self._reports):
                break
            hits.append(block)
        return hits

    def found(self, request: Request, tokens: int) -> list[int]:
        """The cached blocks of so many tokens that the next one reads, and GONE in place of others."""
        whole = range(self.groups.blocks_for(tokens))
        keys = (self.cached(request, at) if self.groups.keeps(at, tokens) else None for at in whole)
        return [GONE if block is None else block for block in keys]

    def cached(self, request: Request, at: int) -> int | None:
        """The findable block of the request's tokens at this index."""
        return self.pool.find(self.key(request.chain, at))

    def reset_prefix(self, request: Request) -> None:
        """Reset the prefix hashes of a request that holds nothing if the weights have changed."""
        if request.epoch != self.epoch:
            request.epoch, request.chain = self.epoch, []

    def adopt(self, request: Request, hits: list[int], trimmed: int) -> None:
        """Start a request with blocks that were found. `trimmed`: the position whose windows they cover."""
        self.pool.share(held(hits), request.id)
        request.blocks, request.trimmed = hits, trimmed
        request.gone = hits.count(GONE)
        request.published = len(hits) // self.group_count
        request.launched = request.published * self.pool.block_size
        if self.budget is not None:
            reports = {at: self._reports[key] for at, key in enumerate(request.chain[: len(hits)])}
            request.evidence = Evidence(reports=reports)

    def take_lacking(self, request: Request, tokens: int) -> list[int]:
        """Take the blocks of so many tokens that the request needs and was not given."""
        blocks = request.blocks + [GONE] * (self.blocks_for(tokens) - len(request.blocks))
        places = [at for at in self.groups.places(tokens, request.trimmed) if blocks[at] == GONE]
        taken = self.pool.allocate_at(places, request.id)
        for at, block in zip(places, taken, strict=True):
            blocks[at] = block
        request.blocks, request.gone = blocks, blocks.count(GONE)
        request.published = min(request.published, places[0] // self.group_count)
        return taken

    def publish(self, request: Request, full: int) -> None:
        """Make the request's first `full` blocks findable; all of them are full."""
        if self.budget is not None:
            full = min(full, self.budget.peak)  # later blocks depend on what was evicted
        self.extend_chain(request, full)
        for at in range(request.published * self.group_count, full * self.group_count):
            if request.blocks[at] == GONE:
                continue
            if self.budget is not None:
                if (report := request.evidence.reports.get(at)) is None:
                    continue
                self._reports[request.chain[at]] = report
            key = request.chain[at] if self.group_count == 1 else self.key(request.chain, at)
            self.pool.publish(request.blocks[at], key)
        if len(self._reports) > 2 * self.pool.size:  # most are of blocks that were evicted since
            self._reports = {
                key: each for key, each in self._reports.items() if self.pool.find(key) is not None
            }
        request.published = max(request.published, full)  # fewer may be launched after a preemption

    def weights_changed(self, scheme: str) -> None:
        """Note the weights' new scheme. Forget cached blocks; requests keep the blocks they hold."""
        self.weights = scheme
        self.epoch += 1
        self.pool.forget_all()

    def names(self, request: Request) -> tuple[bytes, ...]:
        """The keys of the blocks the request has written and holds, the last, partly filled ones included."""
        return self.names_of(
            request, self.resumable(request.launched, min(request.launched, len(request.tokens)))
        )

    def named(self, request: Request, full: int) -> list[tuple[bytes, int]]:
        """The keys and numbers of the blocks that the request holds of its first `full` in each group."""
        if not self._windows:
            return list(zip(request.chain[:full], request.blocks[:full], strict=True))
        held_ones = enumerate(request.blocks[: full * self.group_count])
        return [(self.key(request.chain, at), block) for at, block in held_ones if block != GONE]

    def still_cached(self, request: Request, first: int = 0) -> list[int]:
        """The blocks from this index on that left a window of the request and are findable."""
        if not self._windows:
            return []
        gone = (at for at, block in enumerate(request.blocks[first:], first) if block == GONE)
        named = (at for at in gone if at < len(request.chain) * self.group_count)
        return [block for at in named if (block := self.cached(request, at)) is not None]

    # Blocks outside the window or the budget

    def trim(self, running: Iterable[Request], *, cached: bool) -> set[int]:
        """Release the blocks that requests no longer need. Returns which must wait for scores first."""
        if self._windows:
            for request in running:
                self._trim(request, cached=cached)
        if (budget := self.budget) is None:
            return set()
        return {request.id for request in running if not self.evict(request, budget)}

    def _trim(self, request: Request, *, cached: bool) -> None:
        """Release blocks that no later token of the request sees. They remain findable if `cached`: those
        of a step in flight are published now.
        """
        before, request.trimmed = request.trimmed, self.position(request)
        for window, groups in self._windows.items():
            begin, end = window.start(before), window.start(request.trimmed)
            if begin >= end:
                continue
            if cached and request.published < end and request.epoch == self.epoch:
                self.publish(request, self.position(request) // self.pool.block_size)
            for group in groups:
                past = slice(begin * self.group_count + group, end * self.group_count, self.group_count)
                going = request.blocks[past]
                self.pool.drop(going)
                request.blocks[past] = [GONE] * len(going)
                request.gone += len(going)

    def position(self, request: Request) -> int:
        """The first token that may be computed next, if drafts are rejected or the last one is recomputed."""
        return min(request.launched, len(request.tokens) - 1)

    def evict(self, request: Request, budget: TokenBudget) -> bool:
        """Evict blocks of the request before its next token, if they are due. False: scores are missing."""
        if (due := evictions(request, budget)) is None:
            return False
        going, request.evidence = due
        if not going:
            return True
        self.pool.drop([request.blocks[place] for place in going])
        for place in going:
            request.blocks[place] = GONE
        request.gone += len(going)
        request.skipped += len(going) * self.pool.block_size
        self.tables.write(request.slot, 0, self._row(request))
        return True

    def report(self, request: Request, block: int, scores: np.ndarray) -> None:
        """Note what a block that the request has filled adds to the scores of its blocks."""
        if block < request.launched // self.pool.block_size:  # else it was preempted since
            request.evidence.reports[block] = scores
