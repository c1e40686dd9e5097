"""Handmade snapshots for tests, benchmarks and screenshots."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.api.snapshot import BlockView, Quantiles, RequestView, Snapshot, StepTimes, Throughput

_WAITING = ("waiting", "preempted", "swapped")


def sample_snapshot(blocks: BlockView, requests: Sequence[RequestView] = (), **changes: Any) -> Snapshot:
    """A snapshot of a small engine with these blocks and requests; `changes` override fields."""
    waits = sum(1 for each in requests if each.phase in _WAITING)
    usual = Snapshot(
        at=12.0,
        step=100,
        state="ready",
        error="",
        model="tiny",
        dtype="float32",
        device="cpu",
        attention="torch",
        policy="fcfs",
        quantization="none",
        depth=0,
        block_size=16,
        max_context=4096,
        blocks=blocks,
        host_in_use=3,
        host_size=64,
        requests=tuple(requests),
        waiting=waits,
        running=len(requests) - waits,
        preemptions=2,
        prefix_hit_rate=0.61,
        rates=Throughput(1234.0, 412.0, 98.0, 5.2, 17.0, contexts=((0, 2600.0),), pairs=((0, 8500.0),)),
        step_times=StepTimes(plan=0.0004, launch=0.0021, wait=0.0052, commit=0.0004),
        ttft=Quantiles(0.092, 0.2, 0.31, 42),
        itl=Quantiles(0.0081, 0.01, 0.0123, 4200),
        finished=40,
        memory={
            "weights": 5_200_000_000,
            "cache": 1_100_000_000,
            "host_cache": 0,
            "device_free": 20_400_000_000,
        },
    )
    return replace(usual, **changes)
