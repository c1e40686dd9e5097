"""Snapshots and deltas as JSON: the time to encode and decode them, and their size."""

import json
from dataclasses import replace

import numpy as np

from engine.api.config import EngineConfig
from engine.api.events import Delta
from engine.api.snapshot import BlockView, RequestView, Snapshot
from engine.api.wire import decode_delta, decode_snapshot, encode_delta, encode_snapshot
from engine.dry import dry_engine
from minichat.bench.harness import Bench

REQUESTS = 64
DELTAS = 1_000


def run(bench: Bench, *, blocks: tuple[int, ...] = (1_000, 100_000)) -> None:
    for size in blocks:
        _snapshot(bench, full(size))
    delta = Delta(3, (415,), " so")
    coded = encode_delta(delta)
    bench.measure("a delta, encode", lambda: sum(bool(encode_delta(delta)) for _ in range(DELTAS)))
    bench.measure("a delta, decode", lambda: sum(bool(decode_delta(coded)) for _ in range(DELTAS)))


def _snapshot(bench: Bench, snapshot: Snapshot) -> None:
    name, value = f"{snapshot.blocks.size} blocks", encode_snapshot(snapshot)
    text = json.dumps(value)
    parsed = json.loads(text)
    bench.measure(f"{name}, encode", lambda: _once(encode_snapshot(snapshot)))
    bench.measure(f"{name}, JSON text", lambda: _once(json.dumps(value)))
    bench.measure(f"{name}, decode", lambda: _once(decode_snapshot(parsed)))
    bench.note(f"{name}, size", len(text) / 1e3, "kB")


def _once(_: object) -> float:
    return 1.0


def full(size: int) -> Snapshot:
    """A full cache: the blocks of its requests alternate, the worst order."""
    at, ones = np.arange(size), np.ones(size, np.int32)
    blocks = BlockView(
        size, ones, at % REQUESTS, 16 * ones, at // REQUESTS, size, 0, 0, (at // REQUESTS).astype(np.int32)
    )
    requests = tuple(
        RequestView(n, "decode", "", 9, 9, 9, 99, 0, 0, 0, tuple(range(n, size, REQUESTS)), ())
        for n in range(REQUESTS)
    )
    engine = dry_engine(EngineConfig(model="pocket"))
    return replace(engine.snapshot(), blocks=blocks, requests=requests)
