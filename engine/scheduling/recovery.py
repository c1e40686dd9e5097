"""What a step, or a transfer, that failed leaves to the scheduler."""

from engine.api.request import Finish, Phase, Request
from engine.kv.tiers.tier import TransferEnd
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step import Step
from engine.scheduling.transfers import Moving


def take_back(scheduler: Scheduler, step: Step) -> Request | None:
    """A step that found no memory was never computed, and steps are half as large for a while.

    Requests that have no row in such a step give way. What cannot be made smaller is one request: it is
    returned.
    """
    rules = scheduler.rules
    for row in step.rows:
        if (request := scheduler.requests.get(row.request)) is None:
            continue  # it ended as the step before this one was committed
        request.launched -= row.length
        request.pending -= row.samples
        if row.drafted:
            scheduler.kv.cut(request)
    resend(scheduler, step)
    if len(step.rows) == 1 and (step.tokens == 1 or not rules.chunked_prefill):
        return scheduler.requests.get(step.rows[0].request)
    rules.halve(step.tokens, scheduler.step)
    rows = rules.step_tokens if rules.chunked_prefill else max(1, len(scheduler.running) // 2)
    for request in sorted(scheduler.running, key=scheduler.policy.rank)[rows:]:
        scheduler.preempt(request)
    return None


def take_end(scheduler: Scheduler, end: TransferEnd) -> Moving:
    """A store or a load is over. What did not arrive is computed again."""
    moving = scheduler.transfers.end(end)
    request, tier = moving.request, moving.order.tier
    if moving.order.kind == "load" and request.phase is not Phase.DONE:
        if end.error:
            scheduler.start_over(request, f"its blocks did not come from {tier}; will be computed again")
            scheduler.waiting.push(request)
        else:
            scheduler.report_start(request, swapped=True)
    return moving


def relying_on(scheduler: Scheduler, step: Step) -> list[Request]:
    """The requests of a step, and forks of them that share a block which it was to write."""
    rows = {row.request: row for row in step.rows}
    size, blocks_for = scheduler.pool.block_size, scheduler.kv.blocks_for
    written = {
        block
        for row in step.rows
        if (request := scheduler.requests.get(row.request))
        for block in request.blocks[row.start // size : blocks_for(row.start + row.length)]
    }
    return [
        each for each in scheduler.requests.values() if each.id in rows or not written.isdisjoint(each.blocks)
    ]


def fail_all(scheduler: Scheduler, error: str) -> None:
    """Fails all there is without looking at it: what called for this may have left anything half done."""
    for request in scheduler.requests.values():
        scheduler.report_finish(request, Finish.FAILED, error)
    scheduler.requests.clear()
    scheduler.running.clear()
    scheduler.waiting.clear()
    scheduler.speculator.clear()
    scheduler.transfers.clear()
    scheduler.kv.clear()


def resend(scheduler: Scheduler, step: Step) -> None:
    """What slots have seen is counted on the device, where a step may have failed in the middle of it."""
    changed = {each.slot for each in step.sampling}
    for request in scheduler.running:
        if request.slot in changed or request.id in step.drafts:
            scheduler.changes.resample(request)
