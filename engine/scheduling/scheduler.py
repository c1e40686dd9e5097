"""Continuous batching: choose the requests of each step, their token counts, and which to preempt.

Decodes come first; prefill chunks share the rest of the step's token budget.
"""

import itertools
import time
from collections.abc import Callable, Sequence

from engine.api import events
from engine.api.cache_spec import KvSchemeName
from engine.api.request import Finish, Phase, Request
from engine.kv.eviction import TokenBudget
from engine.kv.groups import BlockGroups
from engine.kv.manager import KVManager
from engine.kv.pool import BlockPool
from engine.kv.tables import BlockTables
from engine.kv.tiers.moving import FoundBlocks
from engine.kv.tiers.tier import Tier
from engine.scheduling.building import Changes, StepBuilder
from engine.scheduling.costs import Costs
from engine.scheduling.invariants import check_invariants
from engine.scheduling.microbatches import microbatch
from engine.scheduling.overtaking import overtaken, victims
from engine.scheduling.pace import StepPace
from engine.scheduling.policy import Policy
from engine.scheduling.queue import WaitingQueue
from engine.scheduling.settings import SchedulerSettings
from engine.scheduling.sinking import Sinking
from engine.scheduling.step import LAST, Drafts, PromptSpan, PromptTargets, Step, StepRow
from engine.scheduling.transfers import Transfers
from engine.speculation.speculator import Speculator

_DECODE = Phase.DECODE  # read for every token, and Python looks a member up slowly


class Scheduler:
    """Owns every live request: waiting, running, or parked."""

    def __init__(
        self,
        *,
        pool: BlockPool,
        tables: BlockTables,
        policy: Policy,
        rules: SchedulerSettings,
        emit: Callable[[events.Event], None],
        clock: Callable[[], float] = time.monotonic,
        kv_scheme: KvSchemeName = "none",
        groups: BlockGroups | None = None,
        budget: TokenBudget | None = None,
        tiers: Sequence[Tier] = (),
        keeps_state: bool = False,
    ) -> None:
        self.pool, self.tables = pool, tables
        self.kv = KVManager(pool, tables, kv_scheme, groups, budget, keeps_state=keeps_state)
        self.policy, self.rules, self.costs = policy, rules, Costs()
        self.transfers = Transfers(self.kv, tiers, rules, self.costs)
        self.sinking = Sinking(self.kv, self.transfers, self.costs)
        self.speculator, self.pace = Speculator(), StepPace()
        self.emit, self.clock = emit, clock
        self.requests: dict[int, Request] = {}
        self.waiting = WaitingQueue(policy.rank)
        self.running: list[Request] = []
        self._preempt_next: list[Request] = []  # preempted by the user, in the next step
        self.changes, self._stamps = Changes(tables), itertools.count()
        self.step = self.preemptions = 0
        self.preempted = False  # a request was preempted in the last step
        self.prompt_tokens = self.cached_tokens = 0  # of admitted requests, for the cache hit rate

    # One step

    def schedule(self) -> Step | None:
        """Decide the next step and take the blocks it needs. None if there is nothing to run."""
        self.pool.clock = self.step
        self.rules.regrow(self.step)
        builder = StepBuilder(self.rules.step_tokens, self.pace.limiter(self.running))
        asked, self._preempt_next = self._preempt_next, []
        for victim in asked:
            if victim.slot >= 0:
                self._preempt(builder, victim)
        loaded = sorted(self.transfers.loaded, key=self.policy.rank)
        while loaded and (self.tables.free or self._overtake(builder, loaded[0])):
            self.start_running(loaded.pop(0))
        self.transfers.loaded = loaded
        self.sinking.copy_ahead(self.step, self.rules.step_tokens)
        later = self._schedule_running(builder)
        if not builder.preempted and not builder.short:
            self._admit_waiting(builder)
        self._schedule_prompts(builder, later)
        if builder.empty and not builder.preempted and not builder.short:
            self._make_room(builder)
        self.pool.free(builder.held)
        self.preempted = bool(builder.preempted)
        if builder.empty:
            return None
        step = self.changes.build(builder, self.step)
        builder.launch(self.requests)
        self.step += 1
        return step

    def _schedule_running(self, builder: StepBuilder) -> list[Request]:
        """Schedule the running requests, except prompts that a waiting request overtakes: these come last."""
        prefilling, speculating = [], []
        unscored = self.kv.trim(self.running, cached=self.rules.prefix_cache)
        cells = self.kv.cells
        for request in microbatch(self.running, self.rules):
            tokens, start = request.tokens, request.launched
            known = len(tokens) + request.pending
            if unscored and request.id in unscored:
                continue
            if known - start > 1:
                prefilling.append(request)
            elif request.slot < 0 or known <= start or known == request.max_len:
                continue  # just preempted for an earlier row, or nothing left to compute
            elif request.pending and request.awaits:
                continue
            elif request.params.speculate:
                speculating.append(request)
            elif (
                start < len(request.blocks) * cells and not request.shares_tail and not request.params.pooling
            ):
                token = LAST if request.pending else tokens[start]
                builder.decode(request, start, token)
                if request.guided:
                    builder.guide(request.id)
            else:
                self._schedule_row(builder, request, 1)
        if speculating:
            self._speculate(builder, speculating)
        later = overtaken(self.waiting.head(), prefilling, self.policy.rank) if prefilling else []
        self._schedule_prompts(builder, [each for each in prefilling if each not in later])
        return later

    def _schedule_prompts(self, builder: StepBuilder, prefilling: list[Request]) -> None:
        for request in sorted(prefilling, key=self.policy.rank):
            # A token that is pending cannot be in a row with others; only a rewound request has both.
            if request.slot >= 0 and (count := self._chunk(builder, request.launched, len(request.tokens))):
                self._schedule_row(builder, request, count)

    def _chunk(self, builder: StepBuilder, start: int, end: int) -> int:
        """How many of the request's tokens from `start` to `end` go into this step."""
        left = min(end - start, self.kv.longest_chunk(start))
        return builder.chunk(start, left, cut=self.rules.chunked_prefill)

    def _speculate(self, builder: StepBuilder, rows: list[Request]) -> None:
        """Schedule decodes that may have drafts. Only these wait for their tokens to reach the host."""
        self.speculator.begin_step(len(self.running))
        spare = (builder.budget - len(rows)) // 2  # the other half is for prompts
        for request in rows:
            if request.slot < 0 or (request.pending and self.speculator.waits(request)):
                continue
            drafts = None
            if not request.pending:
                drafts = self.speculator.propose(
                    request, min(spare, self.kv.draft_room(request, len(self.running)))
                )
            if self._schedule_row(builder, request, 1, drafts) and drafts:
                spare -= drafts.length

    def _schedule_row(
        self, builder: StepBuilder, request: Request, count: int, drafts: Drafts | None = None
    ) -> bool:
        """Add a row for a running request and take the blocks it needs, preempting others if necessary."""
        kv, pool = self.kv, self.pool
        start, drafted = request.launched, drafts.length if drafts else 0
        count += drafted
        tails = kv.shared_tails(request) if request.shares_tail else []
        missing = kv.blocks_for(start + count) - len(request.blocks)
        while not pool.can_allocate(needed := missing + len(tails)):
            if needed <= pool.available + self.transfers.freeing:
                builder.short = True
                return False
            if self.preempt_last(builder) is request:
                return False
            tails = [tail for tail in tails if pool.is_shared(tail)]
        for tail in tails:
            fresh = kv.unshare(request, tail)
            builder.copy(request, tail, fresh)
            self.emit(events.Copied(self.step, self.clock(), request.id, tail, fresh))
        if missing > 0:
            kv.allocate(request, missing)
        tokens = request.tokens[start : start + count - drafted] or [LAST]
        samples = start + count - drafted == request.known
        if drafts:
            builder.drafts[request.id] = drafts
            tokens += drafts.tokens or [0] * drafted
            self.changes.drafts(request, on_device=not drafts.tokens)
        row = StepRow.of(request, start, count, samples, drafted)
        span = PromptSpan.of(request, start, count)
        builder.add(row, tokens, PromptTargets.of(request, start, count), span)
        if samples and request.guided:
            builder.guide(request.id)
        return True

    # Admission and preemption

    def _admit_waiting(self, builder: StepBuilder) -> None:
        if not len(self.waiting):
            return
        kv, promised = self.kv, self._promised()
        while (request := self.waiting.head()) and not (request.id in builder.preempted or request.pending):
            full = not self.tables.free
            if not (overtaken(request, self.running, self.policy.rank) if full else builder.budget > 0):
                return
            if request.stored is None:
                self.kv.reset_prefix(request)
            found = self.transfers.find(request, len(self.running))
            need, spare = kv.needs(request, found.hits), kv.spare(found.hits) - promised
            if full or need > spare:
                short = need - spare - self.transfers.freeing
                if (full or short > 0) and self._overtake(builder, request, short):
                    promised = self._promised()
                    continue
                request.why = found.lacking(need, spare)
                return
            if not (count := self._chunk(builder, found.tokens, request.known)):
                whole = not self.rules.chunked_prefill
                request.why = "needs a step to itself: chunked prefill is off" if whole else "queued"
                return
            if self._admit(request, found):
                self._schedule_row(builder, request, count)
            promised += kv.missing(request)

    def _promised(self) -> int:
        """Blocks that prompts in progress still need."""
        return sum(map(self.kv.missing, itertools.chain(self.running, self.transfers.incoming)))

    def _overtake(self, builder: StepBuilder, request: Request, blocks: int = 0) -> bool:
        """Preempt requests of lower priority for a slot and blocks. False if that would not be enough."""
        chosen = victims(request, self.running, self.policy.rank, self.pool, blocks)
        for victim in chosen:
            self._preempt(builder, victim)
        return bool(chosen)

    def _admit(self, request: Request, found: FoundBlocks) -> bool:
        """Start the first request in the queue with the blocks found. False if it must wait for a load."""
        kept = request.stored is not None and found.tokens == request.launched
        self.waiting.remove(request)
        if not found.tokens:
            self.kv.reset_prefix(request)
        if not self.transfers.begin(request, found):
            request.phase, request.why = Phase.SWAPPED, f"loading its blocks from {found.tier}"
            request.since = self.clock()
            return False
        self.start_running(request)
        self.report_start(request, swapped=kept)
        return True

    def report_start(self, request: Request, *, swapped: bool) -> None:
        """Report that a request has started. `swapped`: its blocks had been stored in a tier."""
        if request.preemptions:
            self.emit(events.Resumed(self.step, self.clock(), request.id, swapped, request.launched))
            return
        request.cached_tokens = min(request.launched, request.prompt_len)  # the others are of a reply_prefix
        if request.group in (-1, request.id):  # not a further reply to a prompt that has been looked up
            self.prompt_tokens += request.prompt_len
            self.cached_tokens += request.cached_tokens
        now, offer = self.clock(), request.offer or ()
        self.emit(events.Admitted(self.step, now, request.id, request.launched, *offer))

    def preempt(self, request: Request) -> None:
        """Preempt a running request in the next step, at the user's request."""
        if request.slot >= 0:
            self._preempt_next.append(request)

    def preempt_last(self, builder: StepBuilder) -> Request:
        """Preempt the running request that the policy ranks last."""
        victim = max(self.running, key=self.policy.rank)
        self._preempt(builder, victim)
        return victim

    def _make_room(self, builder: StepBuilder) -> None:
        """If nothing can run, preempt an idle request: one that holds blocks and waits for its group."""
        if not len(self.waiting) and not self.transfers.loaded:
            return
        if any(each.pending for each in self.running):
            return
        if idle := [each for each in self.running if each.launched == each.known]:
            self._preempt(builder, max(idle, key=self.policy.rank))

    def _preempt(self, builder: StepBuilder, victim: Request) -> None:
        """Take all blocks of a running request and queue it to resume when there is room."""
        copied = builder.preempt(victim, self.pool)  # then its copy is never made
        holds, idle = len(victim.blocks), victim.launched == victim.known and not victim.pending
        self._stop_running(victim)
        victim.preemptions += 1
        self.preemptions += 1
        tier = "" if copied else self.transfers.store(victim, len(self.running))
        if tier:
            victim.phase, victim.why = Phase.SWAPPED, f"preempted; its blocks are stored in tier {tier}"
            self.kv.release(victim)
        else:
            self.start_over(victim, "preempted; will be recomputed")
        if idle:
            self.waiting.park(victim)
        else:
            self.waiting.push(victim)
        self.emit(events.Preempted(self.step, self.clock(), victim.id, bool(tier), holds, tier))

    # Results of a step

    def commit(self, row: StepRow, token: int | None) -> Request | None:
        """Record what a row computed. None if its request has ended, as when a stop is found late."""
        request = self.requests.get(row.request)
        if request is None:
            return None
        if token is not None:
            request.tokens.append(token)
            request.pending -= 1
            if request.params.speculate and not row.drafted:
                self.speculator.observe_token(request)
        elif row.samples:  # its group decides the next token
            if request.slot < 0:
                self.waiting.remove(request)
                self.waiting.park(request)
            request.pending -= 1
        full = len(request.tokens) // self.pool.block_size
        if request.slot >= 0:
            if row.samples:
                request.phase = _DECODE
            if full > request.published and self.rules.prefix_cache and request.epoch == self.kv.epoch:
                self.kv.publish(request, min(full, request.launched // self.pool.block_size))
                self.transfers.sending.send(request)
        return request

    def settle(self, row: StepRow, count: int) -> None:
        """Take in a verification that yielded `count` tokens. Tokens beyond them count as never computed."""
        if (request := self.requests.get(row.request)) is None:
            return
        request.pending += count - 1
        self.kv.rewind(request, request.known - 1)
        self.kv.drop_draft_blocks(request)

    # Adding and ending requests

    def add(self, request: Request) -> None:
        self.enqueue(request)
        self.emit(events.Queued(self.step, self.clock(), request.id, request.prompt_len, request.generated))

    def finish(self, request: Request, finish: Finish, error: str = "") -> None:
        """End a request in any phase and release all it holds."""
        if error:
            self.transfers.forget(request)  # its blocks may be wrong, so none may be found again
        else:
            self.transfers.keep(request)
        self.drop(request)
        self.sinking.copy_ahead(self.step, self.rules.step_tokens, idle=not self.requests)
        self.report_finish(request, finish, error)

    def drop(self, request: Request) -> None:
        """End a request without an event, for one row of a group."""
        if request.slot >= 0:
            self._stop_running(request)
        elif not self.transfers.leave(request):
            self.waiting.remove(request)
        self.transfers.release(request)
        self.kv.release(request)
        self.speculator.forget(request)
        del self.requests[request.id]
        request.phase = Phase.DONE

    def restamp(self, request: Request) -> None:
        """Note that the request's parameters, or its slot, have changed."""
        request.stamp, request.guided = next(self._stamps), bool(request.params.guided)
        self.changes.resample(request)

    def start_over(self, request: Request, why: str) -> None:
        """Drop everything the request has computed."""
        self.transfers.release(request)
        self.kv.release(request)
        request.launched, request.phase, request.why = 0, Phase.PREEMPTED, why

    def enqueue(self, request: Request) -> None:
        self.requests[request.id] = request
        request.phase, request.why = Phase.WAITING, "queued"
        self.waiting.push(request)

    def start_running(self, request: Request) -> None:
        """Give a slot to a request. One must be free."""
        self.kv.open(request)
        request.mirrored = 0
        self.restamp(request)
        continues = request.generated and request.known - request.launched == 1  # a fork, or swapped in
        request.phase, request.why = Phase.DECODE if continues else Phase.PREFILL, ""
        self.running.append(request)

    def _stop_running(self, request: Request) -> None:
        self.running.remove(request)
        self.kv.close(request)

    def report_finish(self, request: Request, finish: Finish, error: str) -> None:
        request.phase, request.finish, request.error, request.why = Phase.DONE, finish, error, ""
        now, name = self.clock(), finish.value
        tokens = request.generated if request.params.max_tokens != 0 else 0  # without a reply it is dropped
        self.emit(events.Finished(self.step, now, request.id, name, tokens, error))

    def check(self) -> None:
        """Check that blocks, slots and queues agree. Raises AssertionError if not."""
        check_invariants(self.requests, self.running, self.waiting, self.transfers, self.kv)
