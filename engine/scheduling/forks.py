"""Requests that continue another one's tokens, and requests whose next token is decided elsewhere."""

from engine.api import events
from engine.api.params import SamplingParams
from engine.api.request import Request
from engine.scheduling.scheduler import Scheduler


def child_of(
    source: Request, id: int, params: SamplingParams, seed: int, max_len: int, arrived: float
) -> Request:
    """Return a request that continues another one's tokens, under its own parameters."""
    return Request(
        id=id,
        tokens=list(source.tokens),
        prompt_len=source.prompt_len,
        params=params,
        seed=seed,
        max_len=max_len,
        arrived=arrived,
        priority=source.priority,
        salt=source.salt,
        adapter=source.adapter,
        chat=source.chat,
        guided_from=source.guided_from if params.grammar == source.params.grammar else len(source.tokens),
    )


def fork(scheduler: Scheduler, parent: Request, child: Request) -> None:
    """Add a child with the parent's tokens. It shares blocks if the parent runs and a slot is free."""
    if branch(scheduler, parent, child):
        same = child.group >= 0  # of the same prompt, which went through the cache once
        child.cached_tokens = parent.cached_tokens if same else min(child.launched, child.prompt_len)
        shared, now = len(child.blocks), scheduler.clock()
        scheduler.emit(events.Forked(scheduler.step, now, child.id, parent.id, shared, child.group))
    elif child.group < 0:  # a group was queued as a whole
        now = scheduler.clock()
        scheduler.emit(events.Queued(scheduler.step, now, child.id, child.prompt_len, child.generated))


def branch(scheduler: Scheduler, parent: Request, child: Request) -> bool:
    """Fork without an event; return whether blocks are shared. The child may have other tokens."""
    if not scheduler.kv.may_share(parent, len(child.tokens)):
        scheduler.enqueue(child)
        return False
    scheduler.requests[child.id] = child
    scheduler.kv.share(parent, child)
    scheduler.start_running(child)
    return True


def append_token(scheduler: Scheduler, request: Request, token: int) -> None:
    """Append the next token of a request that awaits one, decided outside the scheduler."""
    request.tokens.append(token)
    scheduler.waiting.wake(request)


def resample_last(scheduler: Scheduler, request: Request) -> None:
    """Recompute the request's last token, to sample from it with other parameters."""
    scheduler.kv.rewind(request, len(request.tokens) - 1)
    request.shares_tail = bool(request.blocks)
    scheduler.waiting.wake(request)
