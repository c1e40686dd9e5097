"""Which blocks each request holds, and the hashes of their contents."""

import secrets
import sys
from collections.abc import Iterable, Sequence

import numpy as np

from engine.api.cache_spec import KvSchemeName
from engine.api.request import Evidence, Request
from engine.kv import prefix
from engine.kv.eviction import TokenBudget, totals
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
        budget: TokenBudget | None = None,
        *,
        keeps_state: bool = False,
    ) -> None:
        """`keeps_state`: blocks also hold a recurrent state, that after the last token written in each."""
        self.keeps_state = keeps_state
        self.pool, self.tables, self.window, self.budget = pool, tables, window, budget
        self._reports: dict[bytes, np.ndarray] = {}  # with a budget: of published blocks, by name
        self.model = secrets.token_bytes(16)  # not known: no other process finds these blocks
        self._private = b""  # set while no other process may find blocks
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
        at = len(request.blocks)
        fresh = self.pool.allocate(count, request.id, at)
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
        if self.budget is not None:
            return held(request.blocks)
        return [max(block, 0) for block in request.blocks]

    def _write(self, request: Request, at: int, blocks: list[int]) -> None:
        self.tables.write(request.slot, at - request.skipped // self.pool.block_size, blocks)

    def release(self, request: Request) -> None:
        self.pool.free(held(request.blocks))
        request.blocks, request.published, request.shares_tail = [], 0, False
        request.gone = request.skipped = 0
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
        if self.peak is None:
            return whole - len(hits)
        return max(0, min(whole, self.peak) - len(held(hits)))

    def missing(self, request: Request) -> int:
        """How many of the blocks needed before decode the request does not have yet."""
        count = max(0, self.blocks_for(request.known) - len(request.blocks))
        if self.peak is not None and count:
            count = min(count, max(1, self.peak - len(request.blocks) + request.gone))
        return count

    @property
    def peak(self) -> int | None:
        """The most blocks a request can hold; None if it holds all."""
        bound = self.window or self.budget
        return None if bound is None else bound.peak

    def longest_chunk(self, position: int) -> int:
        """How many tokens from `position` on may be computed in one step."""
        if self.window is not None:
            return self.window.size  # a longer chunk could need more blocks than were reserved
        return sys.maxsize if self.budget is None else self.budget.until_due(position)

    def spare(self, hits: list[int]) -> int:
        """Blocks that can be taken once `hits` are in use again."""
        return self.pool.available - sum(not self.pool.refs[block] for block in held(hits))

    def draft_room(self, request: Request, running: int) -> int:
        """How many drafts fit within the reply's limit, without a block another row needs."""
        cells = len(request.blocks) * self.pool.block_size
        if self.pool.available > running:
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
        if self.window is None:
            return True
        return self.window.start(launched) >= self.window.first + parent.gone

    def share(self, parent: Request, child: Request) -> None:
        """Share the parent's blocks with the child, which recomputes its last token to sample from it."""
        child.launched = self.resumable(parent.launched, min(parent.launched, len(child.tokens) - 1))
        child.blocks = parent.blocks[: self.blocks_for(child.launched)]
        child.gone, child.skipped = child.blocks.count(GONE), parent.skipped
        child.evidence = parent.evidence.before(child.launched // self.pool.block_size)
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
        self._write(request, at, [fresh])
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
        if self.budget is not None:
            most = min(most, self.budget.peak - 1)  # the next token is computed before any block is evicted
        hits = []
        for key in request.chain[:most]:
            if (block := self.pool.find(key)) is None or (self.budget and key not in self._reports):
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
        if self.budget is not None:
            reports = {at: self._reports[key] for at, key in enumerate(request.chain[: len(hits)])}
            request.evidence = Evidence(reports=reports)

    def publish(self, request: Request, full: int) -> None:
        """Make the request's first `full` blocks findable; all of them are full."""
        if self.budget is not None:
            full = min(full, self.budget.peak)  # later blocks depend on what was evicted
        self._name(request, full)
        for at in range(request.published, full):
            if request.blocks[at] == GONE:
                continue
            if self.budget is not None:
                if (report := request.evidence.reports.get(at)) is None:
                    continue
                self._reports[request.chain[at]] = report
            self.pool.publish(request.blocks[at], request.chain[at])
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
        """The hashes of all blocks the request has written, including the last, partly filled one.

        Empty if tokens alone do not identify the contents: blocks from older weights, or a shared last block.
        """
        size = self.pool.block_size
        computed = self.resumable(request.launched, min(request.launched, len(request.tokens)))
        tokens = request.tokens[:computed]
        if not tokens or request.gone or request.shares_tail or request.epoch != self.epoch:
            return ()
        full = len(tokens) // size
        self._name(request, full)
        names = request.chain[:full]
        if rest := tokens[full * size :]:
            names.append(prefix.extend(names[-1] if names else self._root(request), rest))
        return tuple(names)

    def _name(self, request: Request, count: int) -> None:
        start = request.chain[-1] if request.chain else self._root(request)
        prefix.extend_chain(request.chain, start, request.tokens, self.pool.block_size, count)

    def _root(self, request: Request) -> bytes:
        return prefix.root(*self.root, request.salt, request.adapter.digest)

    @property
    def root(self) -> tuple[bytes, bytes, str, str]:
        """What all names depend on, apart from a request's own salt and adapter."""
        return self.model, self._private, self.weights, self.kv_scheme

    # Blocks outside the window or the budget

    def trim(self, running: Iterable[Request]) -> set[int]:
        """Release the blocks that requests no longer need. Returns which must wait for scores first."""
        if self.window is not None:
            for request in running:
                self.trim_window(request, self.window)
        if (budget := self.budget) is None:
            return set()
        return {request.id for request in running if not self.evict(request, budget)}

    def trim_window(self, request: Request, window: Window) -> None:
        """Release blocks that no later token of the request sees. Cached ones remain findable."""
        past = slice(window.first + request.gone, self._start(request, window))
        if going := request.blocks[past]:
            self.pool.drop(going)
            request.blocks[past] = [GONE] * len(going)
            request.gone += len(going)

    def _start(self, request: Request, window: Window) -> int:
        """The first visible block if drafts are rejected or the last token is recomputed."""
        return window.start(min(request.launched, len(request.tokens) - 1))

    def evict(self, request: Request, budget: TokenBudget) -> bool:
        """Evict blocks of the request before its next token, if they are due. False: scores are missing."""
        at, size, evidence = request.launched, self.pool.block_size, request.evidence
        if evidence.at == at or request.known <= at or not budget.due(at):
            return True
        if not evidence.covers(full := at // size, size):
            return False
        places = [place for place, block in enumerate(request.blocks[:full]) if block != GONE]
        scores = totals(evidence, full, len(places))
        chosen = budget.choose(scores)
        going = [places[index] for index in chosen]
        self.pool.drop([request.blocks[place] for place in going])
        for place in going:
            request.blocks[place] = GONE
        request.gone += len(going)
        request.skipped += len(going) * size
        request.evidence = Evidence(at, np.delete(scores, chosen))
        self.tables.write(request.slot, 0, self._row(request))
        return True

    def report(self, request: Request, block: int, scores: np.ndarray) -> None:
        """Note what a block that the request has filled adds to the scores of its blocks."""
        if block < request.launched // self.pool.block_size:  # else it was preempted since
            request.evidence.reports[block] = scores

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
        listed = each.blocks if self.budget is None else held(each.blocks)
        row = self.tables.grid[each.slot, : len(listed)].tolist()
        same = all(block in (there, GONE) for there, block in zip(row, listed, strict=True))
        assert same, f"request {each.id}: table {row}, blocks {each.blocks}"
        assert len(each.blocks) >= self.blocks_for(each.launched), f"request {each.id} lacks a block"
        assert each.blocks.count(GONE) == each.gone, f"request {each.id}: {each.gone} gone: {each.blocks}"
        if self.budget is not None:
            assert each.skipped == each.gone * self.pool.block_size, (
                f"request {each.id}: {each.skipped} skipped"
            )
            assert len(listed) <= self.budget.peak + 1, f"request {each.id} exceeds its budget: {each.blocks}"
            return
        if self.window is None:
            assert not each.gone, f"request {each.id} released blocks without a window"
            return
        first, start = self.window.first, self._start(each, self.window)
        for at, block in enumerate(each.blocks):
            assert block != GONE or first <= at < start, f"request {each.id} lacks its block {at}"
