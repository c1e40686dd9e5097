"""Every request that is alive: in line, running, or giving way; and what becomes of it step by step."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine import events
from engine.cache.pool import BlockPool
from engine.cache.tables import BlockTables
from engine.config import PreemptionName
from engine.request import Finish, Phase, Request
from engine.scheduling.costs import Costs
from engine.scheduling.holdings import Holdings, Moves
from engine.scheduling.plan import Plan, Row
from engine.scheduling.planner import Planner
from engine.scheduling.policy import Policy
from engine.scheduling.queue import WaitingQueue
from engine.scheduling.window import Window
from engine.speculation.speculator import Speculator

EASED = 500  # steps that stay small when one has found no memory


@dataclass(slots=True)
class Rules:
    """What may be switched while it runs."""

    step_tokens: int
    prefix_cache: bool = True
    chunked_prefill: bool = True
    preemption: PreemptionName = "auto"


class Scheduler:
    """Owns the requests. A `Planner` decides what a step does; `Holdings` know who holds which blocks."""

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
        self.holdings = Holdings(pool, host, tables, kv_scheme, window)
        self.policy, self.rules, self.costs = policy, rules, Costs()
        self.speculator = Speculator()
        self.emit, self.clock = emit, clock
        self.requests: dict[int, Request] = {}
        self.waiting = WaitingQueue(policy.rank)
        self.running: list[Request] = []
        self._ordered_out: list[Request] = []  # to be preempted by hand
        self._stamps = itertools.count()
        self.step = 0
        self.gave_way = False  # somebody did in the newest plan, so nobody was let in
        self.held_until: float | None = None  # the door is held so long
        self._eased = self._ease_until = 0  # step_tokens before memory ran short; from which step on it grows
        self.preemptions = 0
        self.prompt_tokens = self.cached_tokens = 0  # of admitted requests, for the hit rate

    # Who comes and goes

    def add(self, request: Request) -> None:
        self._line_up(request)
        self.emit(events.Queued(self.step, self.clock(), request.id, request.prompt_len))

    def finish(self, request: Request, finish: Finish, error: str = "") -> None:
        """Ends a request in whatever phase it is; all it holds is given back."""
        if error:
            self.pool.forget(request.blocks)  # what a failed request computed is not to be trusted
        self.drop(request)
        self._say_finished(request, finish, error)

    def drop(self, request: Request) -> None:
        """The same without a word, for one of several that answer a request."""
        if request.slot >= 0:
            self._stop_running(request)
        else:
            self.waiting.remove(request)
        self.holdings.release(request)
        self.speculator.forget(request)
        del self.requests[request.id]
        request.phase = Phase.DONE

    def clear(self, error: str) -> None:
        """Fails all there is without looking at it: what called for this may have left anything half done."""
        for request in self.requests.values():
            self._say_finished(request, Finish.FAILED, error)
        self.requests.clear()
        self.running.clear()
        self.waiting.clear()
        self.speculator.clear()
        self.holdings.clear()

    def recache(self, scheme: str, blocks: int, host_blocks: int) -> None:
        """Begins with an empty cache of another form; nobody may hold any of the old one."""
        assert not self.requests, "a request holds blocks of the cache that goes"
        self.holdings.kv_scheme = scheme
        self.pool.reset(blocks)
        self.host.reset(host_blocks)

    def _line_up(self, request: Request) -> None:
        self.requests[request.id] = request
        request.phase, request.why = Phase.WAITING, "waits its turn"
        self.waiting.push(request)

    def _say_finished(self, request: Request, finish: Finish, error: str) -> None:
        request.phase, request.finish, request.error, request.why = Phase.DONE, finish, error, ""
        now, name = self.clock(), finish.value
        self.emit(events.Finished(self.step, now, request.id, name, request.generated, error))

    # Several that answer one

    def fork(self, parent: Request, child: Request) -> None:
        """A child with the parent's tokens. Where the parent runs and a row is free, it shares its blocks."""
        if self.branch(parent, child):
            shared = len(child.blocks)
            self.emit(events.Forked(self.step, self.clock(), child.id, parent.id, shared))
        else:
            self.emit(events.Queued(self.step, self.clock(), child.id, child.prompt_len))

    def branch(self, parent: Request, child: Request) -> bool:
        """The same without a word; says whether blocks are shared. The child may have tokens of its own."""
        if not self.holdings.may_share(parent, len(child.tokens)):
            self._line_up(child)
            return False
        self.requests[child.id] = child
        self.holdings.share(parent, child)
        child.cached_tokens = child.launched
        self._start_running(child)
        return True

    def go_on(self, request: Request, token: int) -> None:
        """Somebody has decided how a request that awaits it goes on."""
        request.tokens.append(token)
        self.waiting.wake(request)

    def again(self, request: Request) -> None:
        """Its last token is computed once more, to draw from it in another way."""
        request.launched = min(request.launched, len(request.tokens) - 1)
        request.shares_tail = bool(request.blocks)
        self.waiting.wake(request)

    # A step

    def plan(self) -> Plan | None:
        """Who runs next. Takes the blocks that this needs; None where there is nothing to run."""
        self.pool.clock = self.host.clock = self.step
        if self._eased and self.step >= self._ease_until:
            self._ease_off()
        ordered_out, self._ordered_out = self._ordered_out, []
        draft = Planner(self, self.rules.step_tokens).decide(ordered_out)
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
                self.waiting.park(request)
            request.pending -= 1
        full = len(request.tokens) // self.pool.block_size
        if request.slot >= 0:
            if row.samples:
                request.phase = Phase.DECODE
            if full > request.published and self.rules.prefix_cache and request.epoch == self.holdings.epoch:
                self.holdings.publish(request, min(full, request.launched // self.pool.block_size))
        return request

    def settle(self, row: Row, count: int) -> None:
        """A verification has brought so many tokens: what lies beyond them counts as never computed."""
        if (request := self.requests.get(row.request)) is None:
            return
        left = request.known - request.launched
        request.pending += count - 1
        request.launched = min(request.launched, request.known - 1)
        self.holdings.cut(request)
        if request.slot < 0:
            self.waiting.tokens += request.known - request.launched - left

    # In and out of a row

    def let_in(self, request: Request, hits: list[int]) -> Moves:
        """The head of the line runs from here on, with the blocks that were found, or with its own again."""
        resumed, swapped = request.preemptions > 0, request.phase is Phase.SWAPPED
        self.waiting.remove(request)
        moves = self.holdings.swap_in(request) if swapped else []
        if not swapped:
            self.holdings.adopt(request, hits)
        self._start_running(request)
        now = self.clock()
        if resumed:
            self.emit(events.Resumed(self.step, now, request.id, swapped, request.launched))
        else:
            request.cached_tokens = request.launched
            self.prompt_tokens += request.prompt_len
            self.cached_tokens += request.launched
            self.emit(events.Admitted(self.step, now, request.id, request.launched))
        return moves

    def put_out(self, victim: Request, *, swap: bool) -> Moves:
        """Takes all of a running request's blocks. It comes back by itself when there is room."""
        holds, idle = len(victim.blocks), victim.launched == victim.known and not victim.pending
        self._stop_running(victim)
        victim.preemptions += 1
        self.preemptions += 1
        moves = self.holdings.swap_out(victim) if swap else []
        if swap:
            victim.phase, victim.why = Phase.SWAPPED, "gave way; its blocks lie in host memory"
        else:
            self._start_over(victim, "gave way; will be computed again")
        if idle:
            self.waiting.park(victim)
        else:
            self.waiting.push(victim)
        self.emit(events.Preempted(self.step, self.clock(), victim.id, swap, holds))
        return moves

    def preempt(self, request: Request) -> None:
        """Makes a running request give way by hand, in the next plan."""
        if request.slot >= 0:
            self._ordered_out.append(request)

    def restamp(self, request: Request) -> None:
        """Lets the runner see that the request's parameters, or its slot, are new."""
        request.stamp = next(self._stamps)

    def _start_running(self, request: Request) -> None:
        self.holdings.open(request)
        self.restamp(request)
        goes_on = request.generated and request.known - request.launched == 1  # a fork, or back from a swap
        request.phase, request.why = Phase.DECODE if goes_on else Phase.PREFILL, ""
        self.running.append(request)

    def _stop_running(self, request: Request) -> None:
        self.running.remove(request)
        self.holdings.close(request)

    def _start_over(self, request: Request, why: str) -> None:
        self.holdings.release(request)
        request.launched = 0
        request.phase, request.why = Phase.PREEMPTED, why

    # When a step fails

    def take_back(self, plan: Plan) -> Request | None:
        """A plan that found no memory was never computed, and steps are half as large for a while.

        Who has no row in such a step gives way. What cannot be made smaller is one request: it is returned.
        """
        for row in plan.rows:
            request = self.requests[row.request]
            request.launched -= row.length
            request.pending -= row.samples
            if row.drafted:
                self.holdings.cut(request)
        cut = self.rules.chunked_prefill
        if len(plan.rows) == 1 and (plan.tokens == 1 or not cut):
            return self.requests[plan.rows[0].request]
        self._eased = self._eased or self.rules.step_tokens
        self.rules.step_tokens = max(1, plan.tokens // 2)
        self._ease_until = self.step + EASED
        rows = self.rules.step_tokens if cut else max(1, len(self.running) // 2)
        for request in sorted(self.running, key=self.policy.rank)[rows:]:
            self.preempt(request)
        return None

    def _ease_off(self) -> None:
        """Steps have had memory for a long while: they may be twice as large again."""
        self.rules.step_tokens = min(2 * self.rules.step_tokens, self._eased)
        self._ease_until = self.step + EASED
        if self.rules.step_tokens == self._eased:
            self._eased = 0

    def relying_on(self, plan: Plan) -> list[Request]:
        """The requests of a plan, and forks of them that share a block which its step was to write."""
        rows = {row.request: row for row in plan.rows}
        size, blocks_for = self.pool.block_size, self.holdings.blocks_for
        written = {
            block
            for row in plan.rows
            if (request := self.requests.get(row.request))
            for block in request.blocks[row.start // size : blocks_for(row.start + row.length)]
        }
        return [
            each for each in self.requests.values() if each.id in rows or not written.isdisjoint(each.blocks)
        ]

    def abandon(self, plan: Plan) -> None:
        """The plan's block moves may not have happened: who was being swapped out is computed again."""
        moved = {host for _, host in plan.swaps_out}
        why = "its swap failed; will be computed again"
        for request in self.waiting.parked.values():
            if moved.intersection(request.host_blocks):
                self._start_over(request, why)
        for request in [each for each in self.waiting if moved.intersection(each.host_blocks)]:
            self.waiting.remove(request)
            self._start_over(request, why)
            self.waiting.push(request)

    # The proof

    def check(self) -> None:
        """Proves that blocks, rows and lines agree; raises AssertionError where they do not."""
        rowless = [*self.waiting, *self.waiting.parked.values()]
        places = [each.id for each in (*self.running, *rowless)]
        assert set(places) == set(self.requests)
        assert len(places) == len(self.requests), "a request is in two places"
        assert all(each.slot >= 0 for each in self.running), "a request runs without a row"
        assert all(each.slot < 0 for each in rowless), "a request waits in a row"
        self.holdings.check(self.requests.values())
