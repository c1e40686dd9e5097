"""How the scheduler recovers from a failed step or transfer."""

from engine.api.errors import NoMemory
from engine.api.events import log
from engine.api.request import Finish, Request
from engine.kv.tiers.moving import Moving
from engine.kv.tiers.tier import TransferEnd
from engine.kv.window import GONE
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step import Step

PATIENCE = 1.0  # seconds to wait for blocks that a tier loads, at least


def undo_step(scheduler: Scheduler, step: Step, error: NoMemory) -> Request | None:
    """Undo a step that ran out of memory, and halve the size of steps for a while.

    Requests beyond the smaller step are preempted. If the step cannot be made smaller, it has one request,
    which is returned.
    """
    rules = scheduler.rules
    for row in step.rows:
        if (request := scheduler.requests.get(row.request)) is None:
            continue  # it ended when the step before this one was committed
        scheduler.kv.rewind(request, request.launched - row.length)
        request.pending -= row.samples
        if row.drafted:
            scheduler.kv.drop_draft_blocks(request)
    resend(scheduler, step)
    smaller = len(step.rows) > 1 or (step.tokens > 1 and rules.chunked_prefill)
    if scheduler.kv.keeps_state:  # the runner has not tried it again with the memory that it gave back
        smaller = smaller or rules.step_tokens > 1
    if smaller:
        rules.halve(step.tokens, scheduler.step)
    log.warning(
        "out of memory for step %d, %d tokens in %d rows; the next steps have at most %d tokens: %s",
        step.number, step.tokens, len(step.rows), rules.step_tokens, error,
    )  # fmt: skip
    if not smaller:
        return scheduler.requests.get(step.rows[0].request)
    rows = rules.step_tokens if rules.chunked_prefill else max(1, len(scheduler.running) // 2)
    for request in sorted(scheduler.running, key=scheduler.policy.rank)[rows:]:
        scheduler.preempt(request)
    return None


def take_end(scheduler: Scheduler, end: TransferEnd) -> Moving:
    """Handle the end of a store or load. Blocks that failed to load are recomputed."""
    transfers = scheduler.transfers
    request = transfers.awaited_by(transfers.in_flight[end.id])
    moving = transfers.end(end)
    if request is not None and end.error:
        why = f"loading its blocks from {moving.order.tier} failed; will be recomputed"
        scheduler.start_over(request, why)
        scheduler.waiting.push(request)
    elif request is not None:
        scheduler.report_start(request, swapped=True)
    return moving


def compute_late(scheduler: Scheduler) -> list[Moving]:
    """Stop waiting for blocks that take longer to load than to compute, and return their loads.

    A disk can be slow, or not answer at all. The loads continue: they write to blocks, which they hold.
    On a GPU a load may have to wait for a step that was launched before it, which is no reason to give up.
    """
    transfers, rules, now = scheduler.transfers, scheduler.rules, scheduler.clock()
    if rules.preemption == "swap":
        return []
    late, step = list[Moving](), scheduler.costs.recompute(rules.step_tokens)
    for moving in tuple(transfers.loading.values()):
        request, tier = moving.request, moving.order.tier
        assert request is not None
        waited, computing = now - request.since, scheduler.costs.recompute(request.launched)
        if waited > max(PATIENCE, computing) + step:
            transfers.leave(request)
            request.waited = waited
            scheduler.start_over(
                request, f"loading its blocks from {tier} takes too long; will be recomputed"
            )
            scheduler.waiting.push(request)
            late.append(moving)
    return late


def affected_requests(scheduler: Scheduler, step: Step) -> list[Request]:
    """The requests of a step, and forks that share a block it would have written."""
    rows = {row.request: row for row in step.rows}
    size, kv = scheduler.pool.block_size, scheduler.kv
    written = set[int]()
    for row in step.rows:
        if request := scheduler.requests.get(row.request):
            first, end = row.start // size * kv.group_count, kv.blocks_for(row.start + row.length)
            written.update(request.blocks[first:end], kv.still_cached(request, first))
    written.discard(GONE)
    return [
        each for each in scheduler.requests.values() if each.id in rows or not written.isdisjoint(each.blocks)
    ]


def fail_all(scheduler: Scheduler, error: str) -> None:
    """Fail all requests without reading their state, which may be inconsistent."""
    for request in scheduler.requests.values():
        scheduler.report_finish(request, Finish.FAILED, error)
    scheduler.requests.clear()
    scheduler.running.clear()
    scheduler.waiting.clear()
    scheduler.speculator.clear()
    scheduler.transfers.clear()
    scheduler.kv.clear()


def resend(scheduler: Scheduler, step: Step) -> None:
    """Resend the sampling state that the device counts itself, because the step failed midway."""
    changed = {each.slot for each in step.sampling}
    for request in scheduler.running:
        if request.slot in changed or request.id in step.drafts:
            scheduler.changes.resample(request)
