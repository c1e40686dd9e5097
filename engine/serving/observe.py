"""Takes a snapshot of the engine between steps."""

import itertools

import numpy as np

from engine.api.request import Phase, Request
from engine.api.snapshot import (
    HOST,
    AdapterView,
    BeamsView,
    BlockView,
    Change,
    RequestView,
    Snapshot,
    Switch,
    Throughput,
    TierView,
)
from engine.execution.protocol import Runner
from engine.kv.window import held
from engine.scheduling.pace import StepPace
from engine.scheduling.policy import latency_target
from engine.scheduling.scheduler import Scheduler
from engine.serving.info import EngineInfo
from engine.serving.limits import Limits
from engine.serving.meters import Meters
from engine.serving.ranks import Ranks, load_of_all

_SHOWN_WAITING = 64  # waiting requests shown; the others are only counted


def snapshot(
    scheduler: Scheduler,
    runner: Runner,
    meters: Meters,
    info: EngineInfo,
    limits: Limits,
    *,
    error: str,
    warmed: float,
    switches: tuple[Switch, ...],
    change: Change | None,
    beams: tuple[BeamsView, ...],
    adapters: tuple[AdapterView, ...],
    ranks: Ranks,
) -> Snapshot:
    tiers = [
        TierView(each.name, each.used, each.size, each.problem) for each in scheduler.transfers.tiers.values()
    ]
    memory = {} if error else runner.memory()  # a lost GPU does not respond
    now = scheduler.clock()
    line = scheduler.waiting.first(_SHOWN_WAITING)
    parked = scheduler.waiting.parked.values()
    shown = itertools.chain(scheduler.running, scheduler.transfers.incoming, parked, line)
    sharing = ranks.views(info.device, memory)
    return Snapshot(
        at=now,
        step=scheduler.step,
        warmed=warmed,
        state="dead" if error else "ready",
        error=error,
        model=info.model,
        dtype=info.dtype,
        device=info.device,
        attention=info.attention,
        policy=info.policy,
        quantization=runner.weights_scheme,
        depth=int(scheduler.rules.overlap),
        block_size=scheduler.pool.block_size,
        max_context=limits.context,
        context_bound=limits.bound,
        vocab=limits.vocab,
        blocks=_blocks(scheduler),
        host_in_use=sum(tier.in_use for tier in tiers if tier.name == HOST),
        host_size=sum(tier.size for tier in tiers if tier.name == HOST),
        tiers=tuple(tier for tier in tiers if tier.name != HOST),
        requests=tuple(_request(each, scheduler) for each in shown),
        waiting=len(scheduler.waiting) + len(scheduler.waiting.held),
        loading=len(scheduler.transfers.incoming),
        running=len(scheduler.running),
        preemptions=scheduler.preemptions,
        prefix_hit_rate=scheduler.cached_tokens / max(1, scheduler.prompt_tokens),
        prompt_tokens=scheduler.prompt_tokens,
        rates=Throughput() if error else meters.rates(now),  # there are no later snapshots of a dead one
        step_times=meters.times(),
        pace=meters.pace(),
        ttft=meters.ttft(),
        itl=meters.itl(),
        iteration_tokens=meters.iteration_tokens.view(),
        form_times=meters.forms.view(),
        finished=meters.finished,
        memory=memory,
        switches=switches,
        reads=runner.reads(),
        kv_dtype=info.kv_dtype if scheduler.kv.kv_scheme == "none" else scheduler.kv.kv_scheme,
        schemes=runner.weight_schemes(),
        change=change,
        beams=beams,
        ranks=sharing,
        latency_target=latency_target(scheduler.policy),
        max_slowdown=scheduler.pace.factor,
        prompt_limit=scheduler.pace.limited,
        speculation=scheduler.speculator.total(),
        speculates=limits.speculation,
        kv_scheme=scheduler.kv.kv_scheme,
        kv_schemes=runner.kv_schemes(),
        load=None if error else load_of_all(each.load for each in sharing) or runner.load(),
        split=None if error else runner.split(),
        adapters=adapters,
        experts=None if error else runner.experts(),
        block_groups=scheduler.kv.group_count,
    )


def _why(request: Request, scheduler: Scheduler) -> str:
    """Why a request waits. What it needed when it was the first of the queue is out of date behind others."""
    if request.why.startswith("needs ") and request is not scheduler.waiting.head():
        return "queued"
    return request.why or _why_slow(request, scheduler.pace)


def _why_slow(request: Request, pace: StepPace) -> str:
    """Why the prompt of a running request is computed in small pieces, or ""."""
    if request.phase is not Phase.PREFILL or not pace.limited:
        return ""
    return f"{pace.limited} tokens a step, so that replies beside it slow down at most {pace.factor:g} times"


def _request(request: Request, scheduler: Scheduler) -> RequestView:
    return RequestView(
        id=request.id,
        phase=request.phase.value,
        why=_why(request, scheduler),
        prompt=request.prompt_len,
        generated=request.generated,
        launched=request.launched,
        max_len=request.max_len,
        cached_tokens=request.cached_tokens,
        priority=request.priority,
        preemptions=request.preemptions,
        blocks=tuple(held(request.blocks)),
        gone=request.gone,
        host_blocks=tuple(range(len(request.stored.names))) if request.stored else (),
        group=request.group,
        speculation=scheduler.speculator.view(request),
    )


def _blocks(scheduler: Scheduler) -> BlockView:
    pool, groups = scheduler.pool, scheduler.kv.group_count
    owner = pool.owner.copy()
    filled = np.where(owner >= 0, pool.block_size, 0).astype(np.int32)
    # Only the last block of a running request can be partly filled. Just after a fork two requests have it,
    # and one of them may have launched a token more.
    full = [request.launched // pool.block_size * groups for request in scheduler.running]
    for request, end in zip(scheduler.running, full, strict=True):
        filled[request.blocks[end:]] = 0
    for request, end in zip(scheduler.running, full, strict=True):
        last = request.blocks[end : end + groups]
        filled[last] = np.maximum(filled[last], request.launched % pool.block_size)
        filled[request.blocks[max(0, end - groups) : end]] = pool.block_size
    columns = (pool.refs, pool.used_at, pool.place // groups, pool.dropped, pool.moved)
    refs, used_at, place, left, moved = (column.copy() for column in columns)
    for column in (refs, owner, filled, used_at, place, left, moved):
        column.setflags(write=False)
    return BlockView(
        size=pool.size,
        refs=refs,
        owner=owner,
        filled=filled,
        used_at=used_at,
        in_use=pool.in_use,
        cached=pool.cached,
        evictions=pool.evictions,
        place=place,
        left=left,
        moved=moved,
    )
