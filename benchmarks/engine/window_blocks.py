"""Layers with a window in blocks of their own or in blocks of all layers: the cache of a request, and a step.

Random weights. `--shape` is one of minichat/bench/shapes.py, such as Gemma-3-12B, for a GPU; without one, a
small model with the layers of Gemma 3 and a window of 256. `--tokens`: of each prompt.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from engine import cache_plan
from engine.api.config import EngineConfig
from engine.api.events import Delta
from engine.api.params import SamplingParams
from engine.kv.groups import BlockGroups
from engine.serving.engine import Engine
from engine.start import start
from minichat.bench.harness import Bench, note_all, rounds
from minichat.bench.shapes import COMMON, EVERY

SMALL: dict[str, Any] = EVERY["Gemma-3-12B"] | {
    "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 12,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "query_pre_attn_scalar": 64,
    "sliding_window": 256, "max_position_embeddings": 16384, "dtype": "float32",
}  # fmt: skip
STEPS = 20  # of a round


@contextmanager
def blocks_of_all_layers() -> Iterator[None]:
    """Engines started now have one group."""
    before = cache_plan.block_groups
    cache_plan.block_groups = lambda config, *_: BlockGroups(config.block_size)
    try:
        yield
    finally:
        cache_plan.block_groups = before


def drop(delta: Delta) -> None:
    """Ignore a delta."""


def decoding(folder: str, rows: int, tokens: int) -> Engine:
    """An engine whose requests have read their prompts."""
    room = -(-(tokens + 4096) // 16) * rows
    config = EngineConfig(model=folder, dummy_weights=True, blocks=room, max_running=rows, prefix_cache=False)
    engine, params = start(config), SamplingParams(temperature=0, ignore_eos=True, max_tokens=4096)
    for row in range(rows):
        engine.submit([3 + (n * 7 + row) % 4000 for n in range(tokens)], params, drop)
    while any(each.generated < 3 for each in engine.scheduler.requests.values()):
        engine.step()
    return engine


def stepping(engine: Engine) -> Callable[[], float]:
    """A call that decodes some steps and returns the seconds of each, on a CPU in processor time."""
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time

    def steps() -> float:
        began = clock()
        for _ in range(STEPS):
            engine.step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return (clock() - began) / STEPS

    return steps


def held(engine: Engine) -> float:
    """Bytes of the cache's blocks in use."""
    store = engine.runner.store  # type: ignore[attr-defined]
    return float(engine.scheduler.pool.in_use * store.nbytes / engine.scheduler.pool.size)


def run(bench: Bench, *, shape: str = "", rows: str = "1,4", tokens: int = 2000) -> None:
    with tempfile.TemporaryDirectory() as folder:
        values = COMMON | (EVERY[shape] if shape else SMALL)
        (Path(folder) / "config.json").write_text(json.dumps(values))
        for count in map(int, rows.split(",")):
            with blocks_of_all_layers():
                whole = decoding(folder, count, tokens)
            grouped = decoding(folder, count, tokens)
            engines = {"of all layers": whole, "of groups": grouped}
            what = f"{count} rows after {tokens} tokens"
            for name, each in engines.items():
                bench.note(f"cache of {what}, blocks {name}", held(each) / 1e6, "MB")
            found = rounds(bench, {name: stepping(each) for name, each in engines.items()})
            note_all(bench, f"one step, {what}, blocks", found)
            for each in engines.values():
                each.close()
