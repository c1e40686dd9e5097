"""The snapshots of several replicas as one."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import accumulate

import numpy as np

from engine.api.expert_load import ExpertLoad
from engine.api.histogram import Counts
from engine.api.snapshot import (
    AdapterView,
    BlockView,
    FormTime,
    Quantiles,
    ReplicaView,
    RequestView,
    SchemeView,
    Snapshot,
    StepTimes,
    Throughput,
    TierView,
)
from engine.api.speculation import Speculation
from engine.serving.ranks import load_of_all

ByWindow = tuple[tuple[int, float], ...]


def replica_view(
    number: int, shot: Snapshot, queue: int, *, silent: bool, draining: bool = False
) -> ReplicaView:
    """`silent`: the replica has not answered in time, and `shot` is an old one."""
    state = "draining" if draining and shot.state in ("ready", "stopped") else shot.state
    return ReplicaView(
        number=number,
        state="no answer" if silent else state,
        error=shot.error,
        device=shot.device,
        running=shot.running,
        waiting=shot.queued,
        blocks=shot.blocks.size,
        in_use=shot.blocks.in_use,
        cached=shot.blocks.cached,
        queue=queue,
    )


def merged(shots: Sequence[Snapshot], views: Sequence[ReplicaView]) -> Snapshot:
    """One snapshot of a fleet. Blocks are numbered through, in the order of the replicas.

    Counts and rates are sums, and quantiles those of the slowest replica. What all replicas share, such as
    the chosen schemes and switches, is that of the first one that is ready.
    """
    taking = [shot for shot, view in zip(shots, views, strict=True) if view.state == "ready"]
    running = ("ready", "draining")
    ready = [shot for shot, view in zip(shots, views, strict=True) if view.state in running]
    first, steps = (ready or shots)[0], sum(shot.rates.steps for shot in shots)
    starts = [0, *accumulate(shot.blocks.size for shot in shots)]
    splits = [shot.step_times for shot in ready if shot.rates.steps] or [first.step_times]
    return replace(
        first,
        state="ready" if taking else _state_of_none(views),
        error="" if taking else "; ".join(dict.fromkeys(view.error for view in views if view.error)),
        step=sum(shot.step for shot in shots),
        device=f"{len(shots)} x {first.device}",
        blocks=_blocks(shots),
        host_in_use=sum(shot.host_in_use for shot in shots),
        host_size=sum(shot.host_size for shot in shots),
        requests=_requests(shots, starts),
        waiting=sum(shot.waiting for shot in shots),
        running=sum(shot.running for shot in shots),
        loading=sum(shot.loading for shot in shots),
        preemptions=sum(shot.preemptions for shot in shots),
        prefix_hit_rate=_mean((shot.prefix_hit_rate, shot.prompt_tokens) for shot in shots),
        prompt_tokens=sum(shot.prompt_tokens for shot in shots),
        rates=Throughput(
            prefill=sum(shot.rates.prefill for shot in shots),
            decode=sum(shot.rates.decode for shot in shots),
            steps=steps,
            batch=_mean((shot.rates.batch, shot.rates.steps) for shot in shots),
            step_tokens=_mean((shot.rates.step_tokens, shot.rates.steps) for shot in shots),
            contexts=_by_window([(shot.rates.contexts, shot.rates.steps) for shot in shots]),
            pairs=_by_window([(shot.rates.pairs, shot.rates.steps) for shot in shots]),
            adapters=_mean((shot.rates.adapters, shot.rates.steps) for shot in shots),
            adapted=_mean((shot.rates.adapted, shot.rates.steps) for shot in shots),
        ),
        pace=sum(shot.pace for shot in ready if shot.rates.steps) or first.pace,
        step_times=StepTimes(
            *(
                sum(getattr(each, part) for each in splits) / len(splits)
                for part in ("plan", "launch", "wait", "commit")
            ),
        ),
        ttft=_slowest([shot.ttft for shot in shots]),
        itl=_slowest([shot.itl for shot in shots]),
        iteration_tokens=reduce(Counts.plus, (shot.iteration_tokens for shot in shots)),
        finished=sum(shot.finished for shot in shots),
        memory=_memory(shots),
        schemes=_schemes([shot.schemes for shot in ready or shots], all_weights=True),
        kv_schemes=_schemes([shot.kv_schemes for shot in ready or shots], all_weights=False),
        beams=tuple(each for shot in shots for each in shot.beams),
        ranks=tuple(each for shot in shots for each in shot.ranks),
        speculation=Speculation.total(shot.speculation for shot in shots),
        tiers=_tiers(shots),
        adapters=_adapters(first, shots),
        form_times=_form_times(shots),
        experts=ExpertLoad.total(shot.experts for shot in shots),
        load=load_of_all(shot.load for shot in shots),
        warmed=max(shot.warmed for shot in taking or shots),
        replicas=tuple(views),
    )


def _state_of_none(views: Sequence[ReplicaView]) -> str:
    """The state of a fleet without a ready replica: the one most likely to become ready again."""
    states = {view.state for view in views}
    return next(each for each in ("restarting", "draining", "no answer", "stopped", "dead") if each in states)


def _blocks(shots: Sequence[Snapshot]) -> BlockView:
    """A block was used as many of its own replica's steps ago as `used_at` is before the sum of all steps."""
    step = sum(shot.step for shot in shots)
    parts = [replace(each.blocks, used_at=each.blocks.used_at + (step - each.step)) for each in shots]

    def joined(name: str) -> np.ndarray:
        column = np.concatenate([getattr(each, name) for each in parts])
        column.setflags(write=False)
        return column

    columns = ("refs", "owner", "filled", "used_at", "place", "left", "moved")
    return BlockView(
        size=sum(each.size for each in parts),
        in_use=sum(each.in_use for each in parts),
        cached=sum(each.cached for each in parts),
        evictions=sum(each.evictions for each in parts),
        **{name: joined(name) for name in columns},
    )


def _requests(shots: Sequence[Snapshot], starts: Sequence[int]) -> tuple[RequestView, ...]:
    """Running requests of all replicas first, as in the snapshot of one engine."""
    moved = [
        (at >= shot.running, each._replace(blocks=tuple(start + block for block in each.blocks)))
        for shot, start in zip(shots, starts, strict=False)
        for at, each in enumerate(shot.requests)
    ]
    return tuple(each for late in (False, True) for waits, each in moved if waits is late)


def _mean(weighted: Iterable[tuple[float, float]]) -> float:
    pairs = [*weighted]
    weight = sum(each for _, each in pairs)
    return sum(value * each for value, each in pairs) / weight if weight else 0.0


def _slowest(parts: Sequence[Quantiles]) -> Quantiles:
    found = [each for each in parts if each.count]
    if not found:
        return Quantiles()
    p50, p90, p99 = (max(getattr(each, name) for each in found) for name in ("p50", "p90", "p99"))
    return Quantiles(p50, p90, p99, sum(each.count for each in found))


def _by_window(parts: Sequence[tuple[ByWindow, float]]) -> ByWindow:
    windows = dict.fromkeys(window for found, _ in parts for window, _ in found)
    each = [(dict(found), steps) for found, steps in parts]
    return tuple(
        (window, _mean((found.get(window, 0.0), steps) for found, steps in each)) for window in windows
    )


def _tiers(shots: Sequence[Snapshot]) -> tuple[TierView, ...]:
    found: dict[str, list[TierView]] = {}
    for tier in (each for shot in shots for each in shot.tiers):
        found.setdefault(tier.name, []).append(tier)
    return tuple(
        TierView(
            name,
            sum(each.in_use for each in parts),
            sum(each.size for each in parts),
            next((each.problem for each in parts if each.problem), ""),
        )
        for name, parts in found.items()
    )


def _memory(shots: Sequence[Snapshot]) -> dict[str, int]:
    """Sums. Replicas on CPUs share their machine's memory, so the least that one of them sees is counted."""
    found = sum((Counter(shot.memory) for shot in shots), Counter[str]())
    for key in ("device_free", "device_total"):
        shared = [shot.memory[key] for shot in shots if shot.device == "cpu" and key in shot.memory]
        found[key] -= sum(shared) - min(shared, default=0)
    return dict(+found)


def _schemes(parts: Sequence[Sequence[SchemeView]], *, all_weights: bool) -> tuple[SchemeView, ...]:
    """All replicas have the same schemes. Bytes are of all weights, or of one token in the cache."""
    return tuple(
        each[0]._replace(
            nbytes=sum(one.nbytes for one in each) if all_weights else each[0].nbytes,
            blocks=sum(one.blocks for one in each),
        )
        for each in zip(*parts, strict=False)
    )


def _adapters(first: Snapshot, shots: Sequence[Snapshot]) -> tuple[AdapterView, ...]:
    users = Counter[str]()
    for each in (each for shot in shots for each in shot.adapters):
        users[each.name] += each.requests
    return tuple(each._replace(requests=users[each.name]) for each in first.adapters)


def _form_times(shots: Sequence[Snapshot]) -> tuple[FormTime, ...]:
    """Means over the replicas; first the form of the newest step of the busiest one."""
    found: dict[tuple[str, str, int, int], list[FormTime]] = {}
    for shot in sorted(shots, key=lambda each: -each.rates.decode):
        for each in shot.form_times:
            found.setdefault(each[:4], []).append(each)
    return tuple(
        FormTime(*kind, _mean((each.seconds, each.steps) for each in same), sum(each.steps for each in same))
        for kind, same in found.items()
    )
