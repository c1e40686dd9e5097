"""Continuous batching: decodes first, prompt chunks beside them, one token budget a step."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine import events
from engine.cache import prefix
from engine.cache.pool import BlockPool
from engine.cache.tables import BlockTables
from engine.config import PreemptionName
from engine.request import Finish, Phase, Request
from engine.scheduling.costs import Costs
from engine.scheduling.plan import Draft, Drafts, Plan, Row
from engine.scheduling.policy import Outlook, Policy
from engine.scheduling.queue import WaitingQueue
from engine.scheduling.window import GONE, Window, held
from engine.speculation.speculator import Speculator


@dataclass(slots=True)
class Rules:
    """What may be switched while it runs."""

    step_tokens: int
    prefix_cache: bool = True
    chunked_prefill: bool = True
    preemption: PreemptionName = "auto"


class Scheduler:
    """Owns every request that is alive, and who holds which blocks."""

    def __init__(
        self,
        *,
        pool: BlockPool,
        host: BlockPool,
        tables: BlockTables,
        policy: Policy,
        rules: Rules,
        emit: Callable[[events.Event], None],
        clock: Callable[[], float] = time.monotonic,
        kv_scheme: str = "none",
        window: Window | None = None,
    ) -> None:
        self.pool, self.host, self.tables = pool, host, tables
        self.policy, self.rules, self.costs = policy, rules, Costs()
        self.speculator = Speculator()
        self.emit, self.clock = emit, clock
        self.requests: dict[int, Request] = {}
        self.waiting = WaitingQueue(policy.rank)
        self.running: list[Request] = []
        self.parked: dict[int, Request] = {}  # gave way while others decide how they go on; not in line
        self._ordered_out: list[Request] = []  # to be preempted by hand
        self.gave_way = False  # somebody did in the newest plan, so nobody was let in
        self.step = 0
        self._stamps = itertools.count()
        self.epoch = 0  # of the weights: a prefix computed with others is another prefix
        self.window = window
        self.kv_scheme = kv_scheme  # of the cache: another one rounds otherwise, and makes another prefix
        self.held_until: float | None = None  # the door is held so long
        self.preemptions = 0
        self.prompt_tokens = self.cached_tokens = 0  # of admitted requests, for the hit rate

    # Who comes and goes

    def add(self, request: Request) -> None:
        self.requests[request.id] = request
        request.phase, request.why = Phase.WAITING, "waits its turn"
        self.waiting.push(request)
        self.emit(events.Queued(self.step, self.clock(), request.id, request.prompt_len))

    def finish(self, request: Request, finish: Finish, error: str = "") -> None:
        """Ends a request in whatever phase it is; all it holds is given back."""
        if error:
            self.pool.forget(held(request.blocks))  # what a failed request computed is not to be trusted
        self.drop(request)
        request.phase, request.finish, request.error, request.why = Phase.DONE, finish, error, ""
        done = events.Finished(self.step, self.clock(), request.id, finish.value, request.generated, error)
        self.emit(done)

    def drop(self, request: Request) -> None:
        """The same without a word, for one of several that answer a request."""
        if request.slot >= 0:
            self._stop_running(request)
        elif self.parked.pop(request.id, None) is None:
            self.waiting.remove(request)
        self._release(request)
        self.speculator.forget(request)
        del self.requests[request.id]
        request.phase = Phase.DONE

    def clear(self, error: str) -> None:
        """Fails all there is without looking at it: what called for this may have left anything half done."""
        for request in self.requests.values():
            request.phase, request.finish, request.error, request.why = Phase.DONE, Finish.FAILED, error, ""
            self.emit(
                events.Finished(
                    self.step, self.clock(), request.id, request.finish.value, request.generated, error
                )
            )
        self.requests.clear()
        self.running.clear()
        self.parked.clear()
        self.waiting = WaitingQueue(self.policy.rank)
        self.tables.clear()
        self.speculator.clear()
        self.pool, self.host = (BlockPool(each.size, each.block_size) for each in (self.pool, self.host))

    def reweigh(self) -> None:
        """The weights are others now. What was cached is forgotten; who holds blocks goes on with them."""
        self.epoch += 1
        self.pool.forget_all()

    def recache(self, scheme: str, blocks: int, host_blocks: int) -> None:
        """Begins with an empty cache of another form; nobody may hold any of the old one."""
        assert not self.requests, "a request holds blocks of the cache that goes"
        self.kv_scheme = scheme
        self.pool = BlockPool(blocks, self.pool.block_size)
        self.host = BlockPool(host_blocks, self.host.block_size)

    def fork(self, parent: Request, child: Request) -> None:
        """A child with the parent's tokens. Where the parent runs and a row is free, it shares its blocks."""
        if self.branch(parent, child):
            shared = len(child.blocks)
            self.emit(events.Forked(self.step, self.clock(), child.id, parent.id, shared))
        else:
            self.emit(events.Queued(self.step, self.clock(), child.id, child.prompt_len))

    def branch(self, parent: Request, child: Request) -> bool:
        """The same without a word; says whether blocks are shared. The child may have tokens of its own."""
        self.requests[child.id] = child
        if parent.slot < 0 or not self.tables.free or self._lacks(parent, len(child.tokens)):
            child.phase, child.why = Phase.WAITING, "waits its turn"
            self.waiting.push(child)
            return False
        # The child draws for itself after its last token, so it computes that one.
        child.launched = min(parent.launched, len(child.tokens) - 1)
        child.blocks = parent.blocks[: self._blocks_for(child.launched)]
        child.gone = child.blocks.count(GONE)
        self.pool.share(held(child.blocks))
        child.shares_tail = parent.shares_tail = True
        child.chain = parent.chain[: child.launched // self.pool.block_size]
        child.published = min(parent.published, len(child.chain))
        child.epoch = parent.epoch
        child.cached_tokens = child.launched
        self._start_running(child)
        return True

    def go_on(self, request: Request, token: int) -> None:
        """Somebody has decided how a request that awaits it goes on."""
        request.tokens.append(token)
        if self.parked.pop(request.id, None):
            self.waiting.push(request)

    def again(self, request: Request) -> None:
        """Its last token is computed once more, to draw from it in another way."""
        request.launched = min(request.launched, len(request.tokens) - 1)
        request.shares_tail = bool(request.blocks)
        if self.parked.pop(request.id, None):
            self.waiting.push(request)

    # The next step

    def plan(self) -> Plan | None:
        """Who runs next. Takes the blocks that this needs; None where there is nothing to run."""
        draft = Draft(self.rules.step_tokens)
        self.pool.clock = self.host.clock = self.step
        while self._ordered_out:
            if (victim := self._ordered_out.pop()).slot >= 0:
                self._preempt(draft, victim)
        if self.window is not None:
            for request in self.running:
                self._let_go(request, self.window)
        size, prefilling, speculating = self.pool.block_size, [], []
        for request in list(self.running):
            start, known = request.launched, len(request.tokens) + request.pending
            if known - start > 1:
                prefilling.append(request)
            elif request.slot < 0 or known <= start or known == request.max_len:
                continue  # preempted a moment ago for one before it, or nothing more to compute
            elif request.pending and (request.awaits or request.params.grammar):
                continue
            elif request.params.speculate:
                speculating.append(request)
            elif start < len(request.blocks) * size and not request.shares_tail:
                # The plain case, for most rows of most steps.
                draft.add(Row(request.id, request.slot, start, 1, True))
            else:
                self._schedule(draft, request, 1)
        if speculating:
            self._speculate(draft, speculating)
        for request in sorted(prefilling, key=self.policy.rank):
            if request.slot >= 0 and (count := self._chunk(draft, request.known - request.launched)):
                self._schedule(draft, request, count)
        if not draft.preempted:
            self._admit_waiting(draft)
            if not draft.rows:
                self._make_room(draft)
        self.gave_way = draft.preempted
        if not draft.rows and not draft.swaps_out:
            return None
        plan = draft.plan(self.step)
        for row in plan.rows:
            request = self.requests[row.request]
            request.launched += row.length
            request.pending += row.samples
        self.step += 1
        return plan

    def commit(self, row: Row, token: int | None) -> Request | None:
        """Takes in what a row has computed. None where its request is gone: a stop that was found late."""
        request = self.requests.get(row.request)
        if request is None:
            return None
        if token is not None:
            request.tokens.append(token)
            request.pending -= 1
            if request.params.speculate and not row.drafted:
                self.speculator.saw_token(request)
        elif row.samples:  # others decide what it goes on with
            if request.slot < 0:
                self.waiting.remove(request)
                self.parked[request.id] = request
            request.pending -= 1
        full = len(request.tokens) // self.pool.block_size
        if request.slot >= 0:
            if row.samples:
                request.phase = Phase.DECODE
            if full > request.published and self.rules.prefix_cache and request.epoch == self.epoch:
                self._publish(request, min(full, request.launched // self.pool.block_size))
        return request

    # Rows

    def _chunk(self, draft: Draft, left: int) -> int:
        """How many of the tokens that a request has left go into this step."""
        if self.window is not None:
            left = min(left, self.window.size)  # a longer piece may need more blocks than are promised
        if left <= draft.budget:
            return left
        if self.rules.chunked_prefill:
            return draft.budget
        others = any(row.length > 1 + row.drafted for row in draft.rows.values())
        return 0 if others else left  # whole, but one a step

    def _speculate(self, draft: Draft, rows: list[Request]) -> None:
        """Decodes that may have drafts behind them: only those wait for their tokens to be here."""
        self.speculator.begin_step(len(self.running))
        spare = (draft.budget - len(rows)) // 2  # the rest is for prompts
        for request in rows:
            if request.slot < 0 or (request.pending and self.speculator.waits(request)):
                continue
            drafts = None
            if not request.pending:
                drafts = self.speculator.propose(request, min(spare, self._room(request)))
            if self._schedule(draft, request, 1, drafts) and drafts:
                spare -= drafts.length

    def _room(self, request: Request) -> int:
        """How many drafts there is room for, without a reply too long and without another's block."""
        cells = len(request.blocks) * self.pool.block_size
        if self.pool.available > len(self.running):
            cells += self.pool.block_size
        return min(cells - request.launched, request.max_len - request.known) - 1

    def settle(self, row: Row, count: int) -> None:
        """A verification has brought so many tokens: what lies beyond them counts as never computed."""
        if (request := self.requests.get(row.request)) is None:
            return
        left = request.known - request.launched
        request.pending += count - 1
        request.launched = min(request.launched, request.known - 1)
        if request.slot >= 0:
            keep = self._blocks_for(request.known)
            self.pool.give_back(request.blocks[keep:])
            del request.blocks[keep:]
        else:
            keep = self._blocks_for(request.launched)
            self.host.give_back(request.host_blocks[keep:])
            del request.host_blocks[keep:]
            self.waiting.tokens += request.known - request.launched - left

    def _schedule(self, draft: Draft, request: Request, count: int, drafts: Drafts | None = None) -> bool:
        """A row for a running request, with the blocks it needs; others give way to it if they must."""
        start, drafted = request.launched, drafts.length if drafts else 0
        count += drafted
        tail = self._shared_tail(request) if request.shares_tail else None
        missing = self._blocks_for(start + count) - len(request.blocks)
        while not self.pool.can_take(missing + (tail is not None)):
            victim = max(self.running, key=self.policy.rank)
            self._preempt(draft, victim)
            if victim is request:
                return False
            if tail is not None and not self.pool.is_shared(tail):
                tail = None
        if tail is not None:
            self._copy_on_write(draft, request, tail)
        if missing > 0:
            fresh = self.pool.take(missing, request.id, len(request.blocks))
            self.tables.write(request.slot, len(request.blocks), fresh)
            request.blocks += fresh
        samples = start + count - drafted == request.known
        draft.add(Row(request.id, request.slot, start, count, samples, drafted))
        if drafts:
            draft.drafts[request.id] = drafts
        return True

    def _shared_tail(self, request: Request) -> int | None:
        """The half-full block it is about to write to, where somebody else holds that too."""
        if request.launched % self.pool.block_size == 0:
            request.shares_tail = False
            return None
        block = request.blocks[request.launched // self.pool.block_size]
        request.shares_tail = self.pool.is_shared(block)
        return block if request.shares_tail else None

    def _copy_on_write(self, draft: Draft, request: Request, block: int) -> None:
        at = request.blocks.index(block)
        [fresh] = self.pool.take(1, request.id, at)
        self.pool.give_back([block])
        request.blocks[at] = fresh
        self.tables.write(request.slot, at, [fresh])
        request.shares_tail = False
        draft.copies[request.id] = (block, fresh)
        self.emit(events.Copied(self.step, self.clock(), request.id, block, fresh))

    # Letting in

    def _admit_waiting(self, draft: Draft) -> None:
        self.held_until = None
        if not len(self.waiting):
            return
        promised = sum(map(self._missing, self.running))
        while draft.budget > 0 and self.tables.free and (request := self.waiting.head()):
            if hold := self._hold(request):
                request.why = f"held {hold * 1000:.0f} ms for a fuller batch"
                self.held_until = self.clock() + hold
                return
            swapped = request.phase is Phase.SWAPPED
            if not swapped and request.epoch != self.epoch:
                request.epoch, request.chain = self.epoch, []  # all of it will be of these weights
            hits = [] if swapped else self._prefix_hits(request)
            need = self._needs(request, hits)
            spare = self.pool.available - promised - sum(not self.pool.refs[block] for block in held(hits))
            if need > spare:
                request.why = f"waits for blocks: needs {need}, {max(spare, 0)} to spare"
                return
            start = request.launched if swapped else len(hits) * self.pool.block_size
            if not (count := self._chunk(draft, request.known - start)):
                request.why = "waits for a step of its own: prompts are not cut now"
                return
            self._admit(draft, request, hits, start)
            self._schedule(draft, request, count)
            promised += self._missing(request)

    def _hold(self, head: Request) -> float:
        outlook = Outlook(
            self.clock(), head, self.waiting.tokens, len(self.running), self.rules.step_tokens, self.costs
        )
        return self.policy.hold(outlook)

    def _admit(self, draft: Draft, request: Request, hits: list[int], start: int) -> None:
        resumed, swapped = request.preemptions > 0, request.phase is Phase.SWAPPED
        self.waiting.remove(request)
        request.launched = start
        if swapped:
            request.blocks = self.pool.take(len(request.host_blocks), request.id)
            draft.swaps_in += zip(request.host_blocks, request.blocks, strict=True)
            self.host.give_back(request.host_blocks)
            request.host_blocks = []
        else:
            self.pool.share(held(hits))
            request.blocks = hits
            request.gone = hits.count(GONE)
            request.published = len(hits)
        self._start_running(request)
        now = self.clock()
        if resumed:
            self.emit(events.Resumed(self.step, now, request.id, swapped, request.launched))
        else:
            request.cached_tokens = request.launched
            self.prompt_tokens += request.prompt_len
            self.cached_tokens += request.launched
            self.emit(events.Admitted(self.step, now, request.id, request.launched))

    def _prefix_hits(self, request: Request) -> list[int]:
        """The blocks that hold its beginning already. At least one token is left to compute."""
        if not self.rules.prefix_cache:
            return []
        size = self.pool.block_size
        most = (len(request.tokens) - 1) // size
        self._name_blocks(request, most)
        if self.window is not None:
            return self._hits_in(self.window, request.chain[:most])
        hits = []
        for key in request.chain[:most]:
            if (block := self.pool.find(key)) is None:
                break
            hits.append(block)
        return hits

    # What leaves the window

    def _let_go(self, request: Request, window: Window) -> None:
        """Gives back the blocks that none of its tokens to come sees. They stay findable, if they were."""
        # Where drafts are taken back, or its last token is computed again, it goes on from there.
        start = window.start(min(request.launched, len(request.tokens) - 1))
        past = slice(window.first + request.gone, start)
        if going := request.blocks[past]:
            self.pool.let_go(going)
            request.blocks[past] = [GONE] * len(going)
            request.gone += len(going)

    def _lacks(self, parent: Request, tokens: int) -> bool:
        """Whether a child with so many tokens would see blocks that its parent has let go."""
        if self.window is None:
            return False
        return self.window.start(min(parent.launched, tokens - 1)) < self.window.first + parent.gone

    def _hits_in(self, window: Window, chain: list[bytes]) -> list[int]:
        """The blocks to go on from: those that the next token sees. What has left the window may be lost."""
        found = [self.pool.find(key) for key in chain]
        count = window.longest_found(found)
        start = window.start(count * self.pool.block_size)
        return [
            GONE if block is None or window.first <= at < start else block
            for at, block in enumerate(found[:count])
        ]

    def _needs(self, request: Request, hits: list[int]) -> int:
        """Blocks, beside those found, that it needs at its fullest before it decodes."""
        whole = self._blocks_for(request.known)
        if self.window is None:
            return whole - len(hits)
        return max(0, min(whole, self.window.peak) - len(held(hits)))

    def _missing(self, request: Request) -> int:
        """Of those, what it does not have yet."""
        count = max(0, self._blocks_for(request.known) - len(request.blocks))
        if self.window is not None and count:
            count = min(count, max(1, self.window.peak - len(request.blocks) + request.gone))
        return count

    def _check_window(self, request: Request, window: Window) -> None:
        start = window.start(min(request.launched, len(request.tokens) - 1))
        for at, block in enumerate(request.blocks):
            assert block != GONE or window.first <= at < start, f"request {request.id} lacks its block {at}"

    # Giving way

    def _preempt(self, draft: Draft, victim: Request) -> None:
        """Takes all of a request's blocks. It comes back by itself when there is room."""
        draft.preempted = True
        held, idle = len(victim.blocks), victim.launched == victim.known and not victim.pending
        swapped = self._swaps(victim) and victim.id not in draft.copies  # a copy that is never made
        draft.drop(victim.id)
        self._stop_running(victim)
        victim.preemptions += 1
        self.preemptions += 1
        if swapped:
            written = self._blocks_for(victim.launched)
            victim.host_blocks = self.host.take(written, victim.id)
            draft.swaps_out += zip(victim.blocks[:written], victim.host_blocks, strict=True)
            self.pool.give_back(victim.blocks)
            victim.blocks = []
            victim.phase, victim.why = Phase.SWAPPED, "gave way; its blocks lie in host memory"
        else:
            self._start_over(victim, "gave way; will be computed again")
        if idle:
            self.parked[victim.id] = victim
        else:
            self.waiting.push(victim)
        self.emit(events.Preempted(self.step, self.clock(), victim.id, swapped, held))

    def give_way(self, draft: Draft) -> None:
        """Takes the blocks of whom the policy ranks last, for whoever needs them outside of a step."""
        self._preempt(draft, max(self.running, key=self.policy.rank))

    def _make_room(self, draft: Draft) -> None:
        """Nothing can run: of those that hold blocks and only wait for their fellows, the last gives way."""
        if not len(self.waiting) or self.held_until is not None or any(each.pending for each in self.running):
            return
        if idle := [each for each in self.running if each.launched == each.known]:
            self._preempt(draft, max(idle, key=self.policy.rank))

    def preempt(self, request: Request) -> None:
        """Makes a running request give way by hand, in the next plan."""
        if request.slot >= 0:
            self._ordered_out.append(request)

    def _swaps(self, victim: Request) -> bool:
        written = self._blocks_for(victim.launched)
        if victim.gone or victim.shares_tail or not written or not self.host.can_take(written):
            return False
        if self.rules.preemption != "auto":
            return self.rules.preemption == "swap"
        return self.costs.swap_is_cheaper(victim.launched, written)

    def relying_on(self, plan: Plan) -> list[Request]:
        """The requests of a plan, and forks of them that share a block which its step was to write."""
        rows = {row.request: row for row in plan.rows}
        size = self.pool.block_size
        written = {
            block
            for row in plan.rows
            if (request := self.requests.get(row.request))
            for block in request.blocks[row.start // size : self._blocks_for(row.start + row.length)]
        }
        return [
            each for each in self.requests.values() if each.id in rows or not written.isdisjoint(each.blocks)
        ]

    def abandon(self, plan: Plan) -> None:
        """The plan's block moves may not have happened: who was being swapped out is computed again."""
        moved = {host for _, host in plan.swaps_out}
        why = "its swap failed; will be computed again"
        for request in [*self.waiting, *self.parked.values()]:
            if not moved.intersection(request.host_blocks):
                continue
            if request.id in self.parked:
                self._start_over(request, why)
                continue
            self.waiting.remove(request)
            self._start_over(request, why)
            self.waiting.push(request)

    # Small things

    def _start_running(self, request: Request) -> None:
        request.slot = self.tables.open([max(block, 0) for block in request.blocks])  # of none, nobody reads
        self.restamp(request)
        request.phase = Phase.PREFILL
        request.why = ""
        self.running.append(request)

    def restamp(self, request: Request) -> None:
        """Lets the runner see that the request's parameters, or its slot, are new."""
        request.stamp = next(self._stamps)

    def _stop_running(self, request: Request) -> None:
        self.running.remove(request)
        self.tables.close(request.slot)
        request.slot = -1

    def _start_over(self, request: Request, why: str) -> None:
        self._release(request)
        request.launched = 0
        request.phase, request.why = Phase.PREEMPTED, why

    def _release(self, request: Request) -> None:
        self.pool.give_back(held(request.blocks))
        self.host.give_back(request.host_blocks)
        request.blocks, request.host_blocks, request.published, request.shares_tail = [], [], 0, False
        request.gone = 0

    def _publish(self, request: Request, full: int) -> None:
        self._name_blocks(request, full)
        for at in range(request.published, full):
            if request.blocks[at] != GONE:
                self.pool.publish(request.blocks[at], request.chain[at])
        request.published = max(request.published, full)  # fewer may be launched again after a preemption

    def _name_blocks(self, request: Request, count: int) -> None:
        start = prefix.root(self.epoch, self.kv_scheme, request.salt)
        prefix.lengthen(request.chain, start, request.tokens, self.pool.block_size, count)

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.pool.block_size)

    def check(self) -> None:
        """Proves that blocks, rows and lines agree; raises AssertionError where they do not."""
        alive = self.requests.values()
        self.pool.check({each.id: each.blocks for each in alive})
        self.host.check({each.id: each.host_blocks for each in alive})
        places = [*self.running, *self.waiting, *self.parked.values()]
        assert {each.id for each in places} == set(self.requests)
        assert len(places) == len(self.requests), "a request is in two places"
        slots = [each.slot for each in self.running]
        assert len(set(slots)) == len(slots) and self.tables.free + len(slots) == len(self.tables.grid)
        for each in self.running:
            row = self.tables.grid[each.slot, : len(each.blocks)].tolist()
            same = all(block in (there, GONE) for there, block in zip(row, each.blocks, strict=True))
            assert same, f"request {each.id}: table {row}, blocks {each.blocks}"
            assert each.blocks.count(GONE) == each.gone, f"request {each.id} has lost count: {each.blocks}"
            if self.window is not None:
                self._check_window(each, self.window)
            else:
                assert not each.gone, f"request {each.id} lets go of blocks without a window"
            assert len(each.blocks) >= self._blocks_for(each.launched), f"request {each.id} lacks a block"
        for each in (*self.waiting, *self.parked.values()):
            assert each.slot < 0 and not each.blocks, f"request {each.id} waits and holds blocks"
