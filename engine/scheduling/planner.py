"""Continuous batching: decodes first, prompt chunks beside them, one token budget a step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from engine import events
from engine.request import Phase, Request
from engine.scheduling.plan import Draft, Drafts, Row
from engine.scheduling.policy import Outlook

if TYPE_CHECKING:
    from engine.scheduling.scheduler import Scheduler


class Planner:
    """Decides one step: who runs, for how many tokens, and who gives way to it."""

    def __init__(self, scheduler: Scheduler, budget: int) -> None:
        self._scheduler, self._holdings, self._pool = scheduler, scheduler.holdings, scheduler.pool
        self.draft = Draft(budget)

    def decide(self, ordered_out: Iterable[Request]) -> Draft:
        for victim in ordered_out:
            if victim.slot >= 0:
                self._preempt(victim)
        self._keep_running()
        if not self.draft.preempted:
            self._admit_waiting()
            if not self.draft.rows:
                self._make_room()
        return self.draft

    # Who runs already

    def _keep_running(self) -> None:
        scheduler, draft, prefilling, speculating = self._scheduler, self.draft, [], []
        if (window := self._holdings.window) is not None:
            for request in scheduler.running:
                self._holdings.let_go(request, window)
        size = self._pool.block_size
        for request in list(scheduler.running):
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
                self._schedule(request, 1)
        if speculating:
            self._speculate(speculating)
        for request in sorted(prefilling, key=scheduler.policy.rank):
            if request.slot >= 0 and (count := self._chunk(request.known - request.launched)):
                self._schedule(request, count)

    def _chunk(self, left: int) -> int:
        """How many of the tokens that a request has left go into this step."""
        if (window := self._holdings.window) is not None:
            left = min(left, window.size)  # a longer piece may need more blocks than are promised
        if left <= self.draft.budget:
            return left
        if self._scheduler.rules.chunked_prefill:
            return max(0, self.draft.budget)  # forks may be more than a step that was short of memory has
        others = any(row.length > 1 + row.drafted for row in self.draft.rows.values())
        return 0 if others else left  # whole, but one a step

    def _speculate(self, rows: list[Request]) -> None:
        """Decodes that may have drafts behind them: only those wait for their tokens to be here."""
        speculator = self._scheduler.speculator
        speculator.begin_step(len(self._scheduler.running))
        spare = (self.draft.budget - len(rows)) // 2  # the rest is for prompts
        for request in rows:
            if request.slot < 0 or (request.pending and speculator.waits(request)):
                continue
            drafts = None
            if not request.pending:
                drafts = speculator.propose(request, min(spare, self._room(request)))
            if self._schedule(request, 1, drafts) and drafts:
                spare -= drafts.length

    def _room(self, request: Request) -> int:
        """How many drafts there is room for, without a reply too long and without another's block."""
        cells = len(request.blocks) * self._pool.block_size
        if self._pool.available > len(self._scheduler.running):
            cells += self._pool.block_size
        return min(cells - request.launched, request.max_len - request.known) - 1

    def _schedule(self, request: Request, count: int, drafts: Drafts | None = None) -> bool:
        """A row for a running request, with the blocks it needs; others give way to it if they must."""
        holdings, pool = self._holdings, self._pool
        start, drafted = request.launched, drafts.length if drafts else 0
        count += drafted
        tail = holdings.shared_tail(request) if request.shares_tail else None
        missing = holdings.blocks_for(start + count) - len(request.blocks)
        while not pool.can_take(missing + (tail is not None)):
            if self.give_way() is request:
                return False
            if tail is not None and not pool.is_shared(tail):
                tail = None
        if tail is not None:
            self._copy_on_write(request, tail)
        if missing > 0:
            holdings.lengthen(request, missing)
        samples = start + count - drafted == request.known
        self.draft.add(Row(request.id, request.slot, start, count, samples, drafted))
        if drafts:
            self.draft.drafts[request.id] = drafts
        return True

    def _copy_on_write(self, request: Request, block: int) -> None:
        fresh = self._holdings.part(request, block)
        self.draft.copies[request.id] = (block, fresh)
        scheduler = self._scheduler
        scheduler.emit(events.Copied(scheduler.step, scheduler.clock(), request.id, block, fresh))

    # Letting in

    def _admit_waiting(self) -> None:
        scheduler, holdings, draft = self._scheduler, self._holdings, self.draft
        scheduler.held_until = None
        if not len(scheduler.waiting):
            return
        promised = sum(map(holdings.missing, scheduler.running))
        while draft.budget > 0 and scheduler.tables.free and (request := scheduler.waiting.head()):
            if hold := self._hold(request):
                request.why = f"held {hold * 1000:.0f} ms for a fuller batch"
                scheduler.held_until = scheduler.clock() + hold
                return
            swapped = request.phase is Phase.SWAPPED
            if not swapped and request.epoch != holdings.epoch:
                request.epoch, request.chain = holdings.epoch, []  # all of it will be of these weights
            hits = holdings.find(request) if scheduler.rules.prefix_cache and not swapped else []
            need, spare = holdings.needs(request, hits), holdings.spare(hits) - promised
            if need > spare:
                request.why = f"waits for blocks: needs {need}, {max(spare, 0)} to spare"
                return
            start = request.launched if swapped else len(hits) * self._pool.block_size
            if not (count := self._chunk(request.known - start)):
                request.why = "waits for a step of its own: prompts are not cut now"
                return
            draft.swaps_in += scheduler.let_in(request, hits)
            self._schedule(request, count)
            promised += holdings.missing(request)

    def _hold(self, head: Request) -> float:
        scheduler = self._scheduler
        running, step_tokens = len(scheduler.running), scheduler.rules.step_tokens
        outlook = Outlook(
            scheduler.clock(), head, scheduler.waiting.tokens, running, step_tokens, scheduler.costs
        )
        return scheduler.policy.hold(outlook)

    # Giving way

    def give_way(self) -> Request:
        """Takes the blocks of whom the policy ranks last."""
        victim = max(self._scheduler.running, key=self._scheduler.policy.rank)
        self._preempt(victim)
        return victim

    def _make_room(self) -> None:
        """Nothing can run: of those that hold blocks and only wait for their fellows, the last gives way."""
        scheduler, running = self._scheduler, self._scheduler.running
        if not len(scheduler.waiting) or scheduler.held_until is not None:
            return
        if any(each.pending for each in running):
            return
        if idle := [each for each in running if each.launched == each.known]:
            self._preempt(max(idle, key=scheduler.policy.rank))

    def _preempt(self, victim: Request) -> None:
        self.draft.preempted = True
        swap = self._swaps(victim) and victim.id not in self.draft.copies  # a copy that is never made
        self.draft.drop(victim.id)
        self.draft.swaps_out += self._scheduler.put_out(victim, swap=swap)

    def _swaps(self, victim: Request) -> bool:
        if not self._holdings.fits_host(victim):
            return False
        if (preemption := self._scheduler.rules.preemption) != "auto":
            return preemption == "swap"
        written = self._holdings.blocks_for(victim.launched)
        return self._scheduler.costs.swap_is_cheaper(victim.launched, written)
