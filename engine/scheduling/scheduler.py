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
from engine.scheduling.plan import Draft, Plan, Row
from engine.scheduling.policy import Outlook, Policy
from engine.scheduling.queue import WaitingQueue


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
    ) -> None:
        self.pool, self.host, self.tables = pool, host, tables
        self.policy, self.rules, self.costs = policy, rules, Costs()
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
            self.pool.forget(request.blocks)  # what a failed request computed is not to be trusted
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
        self.pool, self.host = (BlockPool(each.size, each.block_size) for each in (self.pool, self.host))

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
        if parent.slot < 0 or not self.tables.free:
            child.phase, child.why = Phase.WAITING, "waits its turn"
            self.waiting.push(child)
            return False
        # The child draws for itself after its last token, so it computes that one.
        child.launched = min(parent.launched, len(child.tokens) - 1)
        held = self._blocks_for(child.launched)
        child.blocks = parent.blocks[:held]
        self.pool.share(child.blocks)
        child.shares_tail = parent.shares_tail = True
        child.chain = parent.chain[: child.launched // self.pool.block_size]
        child.published = min(parent.published, len(child.chain))
        child.cached_tokens = child.launched
        self._start_running(child)
        return True

    def go_on(self, request: Request, token: int) -> None:
        """Somebody has decided how a request that awaits it goes on."""
        request.tokens.append(token)
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
        size, prefilling = self.pool.block_size, []
        for request in list(self.running):
            start, known = request.launched, len(request.tokens) + request.pending
            if known - start > 1:
                prefilling.append(request)
            elif request.slot < 0 or known == start or known == request.max_len:
                continue  # preempted a moment ago for one before it, or nothing more to compute
            elif request.awaits and request.pending:
                continue
            elif start < len(request.blocks) * size and not request.shares_tail:
                # The plain case, for most rows of most steps.
                draft.add(Row(request.id, request.slot, start, 1, True))
            else:
                self._schedule(draft, request, 1)
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
        elif row.samples:  # others decide what it goes on with
            if request.slot < 0:
                self.waiting.remove(request)
                self.parked[request.id] = request
            request.pending -= 1
        full = len(request.tokens) // self.pool.block_size
        if request.slot >= 0:
            if row.samples:
                request.phase = Phase.DECODE
            if full > request.published and self.rules.prefix_cache:
                self._publish(request, min(full, request.launched // self.pool.block_size))
        return request

    # Rows

    def _chunk(self, draft: Draft, left: int) -> int:
        """How many of the tokens that a request has left go into this step."""
        if left <= draft.budget:
            return left
        if self.rules.chunked_prefill:
            return draft.budget
        return 0 if any(row.length > 1 for row in draft.rows.values()) else left  # whole, but one a step

    def _schedule(self, draft: Draft, request: Request, count: int) -> bool:
        """A row for a running request, with the blocks it needs; others give way to it if they must."""
        start = request.launched
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
        draft.add(Row(request.id, request.slot, start, count, samples=start + count == request.known))
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
        promised = sum(self._blocks_for(each.known) - len(each.blocks) for each in self.running)
        while draft.budget > 0 and self.tables.free and (request := self.waiting.head()):
            if hold := self._hold(request):
                request.why = f"held {hold * 1000:.0f} ms for a fuller batch"
                self.held_until = self.clock() + hold
                return
            swapped = request.phase is Phase.SWAPPED
            hits = [] if swapped else self._prefix_hits(request)
            need = self._blocks_for(request.known) - len(hits)
            spare = self.pool.available - promised - sum(not self.pool.refs[block] for block in hits)
            if need > spare:
                request.why = f"waits for blocks: needs {need}, {max(spare, 0)} to spare"
                return
            start = request.launched if swapped else len(hits) * self.pool.block_size
            if not (count := self._chunk(draft, request.known - start)):
                request.why = "waits for a step of its own: prompts are not cut now"
                return
            self._admit(draft, request, hits, start)
            self._schedule(draft, request, count)
            promised += self._blocks_for(request.known) - len(request.blocks)

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
            self.pool.share(hits)
            request.blocks = hits
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
        hits = []
        for key in request.chain[:most]:
            if (block := self.pool.find(key)) is None:
                break
            hits.append(block)
        return hits

    # Giving way

    def _preempt(self, draft: Draft, victim: Request) -> None:
        """Takes all of a request's blocks. It comes back by itself when there is room."""
        draft.preempted = True
        held, idle = len(victim.blocks), victim.launched == victim.known
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
        if victim.shares_tail or not written or not self.host.can_take(written):
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
        request.slot = self.tables.open(request.blocks)
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
        self.pool.give_back(request.blocks)
        self.host.give_back(request.host_blocks)
        request.blocks, request.host_blocks, request.published, request.shares_tail = [], [], 0, False

    def _publish(self, request: Request, full: int) -> None:
        self._name_blocks(request, full)
        for at in range(request.published, full):
            self.pool.publish(request.blocks[at], request.chain[at])
        request.published = max(request.published, full)  # fewer may be launched again after a preemption

    def _name_blocks(self, request: Request, count: int) -> None:
        start = prefix.root(self.epoch, request.salt)
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
            assert row == each.blocks, f"request {each.id}: table {row}, blocks {each.blocks}"
            assert len(each.blocks) >= self._blocks_for(each.launched), f"request {each.id} lacks a block"
        for each in (*self.waiting, *self.parked.values()):
            assert each.slot < 0 and not each.blocks, f"request {each.id} waits and holds blocks"
