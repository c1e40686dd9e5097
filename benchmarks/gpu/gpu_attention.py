"""Attention layers on a GPU in a CUDA graph: decode, mixed lengths, verification, prefill.

Each layer has its own memory; together they are larger than the GPU's cache. The result of the first layer is
checked against the torch backend in float32. The figures include writing the step's keys and values.
`--kv none fp8 int8` compares KV schemes, case by case. `--observers 0 2`: so many rows of a decode step also
sum up their attention by block, as eviction by attention needs it at the end of a block. `--tile`: the keys,
warps, stages and programs of the tile for rows of one token over an uncompressed cache, in place of the
chosen one.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.workload import contexts_left
from engine.api.cache_spec import KvSchemeName, LayerSpec
from engine.attention.base import Batch, KVLayer
from engine.attention.observers import Observers
from engine.attention.packing import pack
from engine.attention.registry import choose
from engine.attention.torch_backend import TorchAttention
from engine.kv.eviction import filled_blocks
from engine.kv.store import GROUP, PACKED, KVStore
from minichat.bench.harness import Bench

Rows = Sequence[tuple[int, int]]  # (tokens in this step, tokens attended to in all)

FRESH_BYTES = 5e8  # of keys and values in all layers: several times the GPU's cache
REPLAYS = 4
WRONG = 1e-2  # relative error from which on the result is wrong


def ragged(count: int) -> Rows:
    lengths = np.random.default_rng(0).integers(100, 2000, count)
    return [(1, int(length)) for length in lengths]


DECODE: dict[str, Rows] = {
    **{
        f"{rows} x {context}": [(1, context)] * rows
        for context in (128, 512, 656, 4096)
        for rows in (1, 8, 32, 128, 256)
    },
    "32 x 8192": [(1, 8192)] * 32,
    **{f"{rows} x 32768": [(1, 32768)] * rows for rows in (1, 8, 32, 128)},
    **{f"{rows} x 131072": [(1, 131072)] * rows for rows in (1, 8)},
    "64 of 100 to 2,000": ragged(64),
    "256 of 100 to 2,000": ragged(256),
    "31 x 656 and 1 x 32768": [(1, 656)] * 31 + [(1, 32768)],
    **{
        f"N, {rows} rows left": [(1, each) for each in contexts_left(rows)] for rows in (224, 128, 96, 64, 32)
    },
}
CHUNKS: dict[str, Rows] = {
    "5 tokens at 656": [(5, 656)],
    "32 x 5 tokens at 656": [(5, 656)] * 32,
    "16 prompts of 512": [(512, 512)] * 16,
    "prompts of 100 to 1,024": [(int(each), int(each)) for each in np.linspace(100, 1024, 15)],
    **{f"a prompt of {tokens}": [(tokens, tokens)] for tokens in (512, 1024, 2048, 4096, 8192, 32768)},
    "512 tokens at 32768": [(512, 32768)],
}
PARTS = DECODE | CHUNKS


@dataclass(frozen=True, slots=True)
class Step:
    batch: Batch
    layers: list[KVLayer]
    q: Tensor
    k: Tensor
    v: Tensor


def run(
    bench: Bench,
    *,
    attention: str = "triton",
    heads: int = 16,
    kv_heads: int = 8,
    dim: int = 128,
    block_size: int = 16,
    dtype: str = "bfloat16",
    kv: tuple[KvSchemeName, ...] = ("none",),
    tile: tuple[int, ...] = (0,),
    observers: tuple[int, ...] = (0,),
    only: tuple[str, ...] = tuple(PARTS),
) -> None:
    if not torch.cuda.is_available():
        raise SystemExit(f"gpu_attention needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    device, kind = torch.device("cuda", 0), getattr(torch, dtype)
    spec = LayerSpec(heads=heads, kv_heads=kv_heads, key_dim=dim, value_dim=dim, scale=dim**-0.5)
    backends = {
        scheme: choose(attention, device, [spec], kind, scheme, block_size=block_size) for scheme in kv
    }
    copied = bench.note("a device copy, read and written", copy_speeds(bench), "TB/s").median

    def figures(name: str, rows: Rows, scheme: KvSchemeName, observing: int = 0) -> float:
        """Measure the microseconds of a layer; return their median."""
        backend, step = backends[scheme], make_step(spec, rows, block_size, kind, device, scheme)
        if observing:
            step.batch.observers = observers_of(step.batch, observing)
        with fixed(tile), torch.inference_mode():
            prepared = backend.prepare(step.batch)

            def layer(index: int) -> Tensor:
                return backend.attend(step.q, step.k, step.v, step.layers[index], prepared)

            check(name, layer(0), step)
            return bench.note(name, graph_times(bench, layer, len(step.layers)), "us").median

    for name, scheme, some in product([name for name in PARTS if name in only], kv, observers):
        label = name if scheme == "none" else f"{name}, KV {scheme}"
        if (rows := DECODE.get(name)) is not None:
            label += f", {some} observers" if some else ""
            median = figures(f"decode {label}", rows, scheme, some)
            read = sum(context for _, context in rows) * KVStore.block_bytes([spec], 1, kind, scheme)
            speed = bench.note(f"decode {label}, keys and values read", read / median / 1e6, "TB/s").median
            bench.note(f"decode {label}, of a copy's speed", 100 * speed / copied, "%")
        else:
            rows = CHUNKS[name]
            median = figures(label, rows, scheme)
            pairs = sum(new * (context - new) + new * (new + 1) / 2 for new, context in rows)
            bench.note(f"{label}, arithmetic", 4 * pairs * heads * dim / median / 1e6, "TFLOP/s")


def observers_of(batch: Batch, count: int) -> Observers:
    """Some rows of one token that fill a block."""
    lengths, size = np.ones_like(batch.host_contexts), batch.block_size
    filled = filled_blocks(lengths, batch.host_contexts, size)[:count]
    if len(filled) < count:
        raise SystemExit(f"{len(filled)} rows of this step fill a block, not {count}")
    return Observers.of(filled, batch.host_tables.shape[1], size, batch.tables.device)


def fixed(tile: Sequence[int]) -> AbstractContextManager[Any]:
    """Choose this tile for rows of one token."""
    from engine.kernels.triton.attention import tiles

    if len(tile) == 1:
        return nullcontext()
    keys, warps, stages, programs = tile
    return patch.multiple(tiles, TOKENS=(), MANY_TOKENS=(keys, warps, stages, programs, False))


def make_step(
    spec: LayerSpec,
    rows: Rows,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    kv: KvSchemeName = "none",
) -> Step:
    """A step with random inputs and with FRESH_BYTES of layers; the blocks of a row are in random order."""
    batch = batch_of(rows, block_size, device)
    blocks = int(batch.host_tables.max()) + 1

    def normal(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device=device).normal_()

    def layer() -> KVLayer:
        shape = (blocks, block_size, spec.kv_heads)
        keys, values = normal(*shape, spec.key_dim), normal(*shape, spec.value_dim)
        if kv == "none":
            return KVLayer(spec, keys, values)
        (keys, key_scales), (values, value_scales) = (pack(each, PACKED[kv]) for each in (keys, values))
        made = KVLayer(spec, keys, values, None, key_scales, value_scales)
        if kv == "int4":
            centers = normal(blocks, block_size // GROUP, spec.kv_heads, 2, spec.key_dim)
            centers[..., 1, :].abs_().add_(0.5)  # the spreads
            made.channels, scales = pack(centers, torch.int8)
            made.channel_scales = scales.float()
        return made

    first = layer()
    count = max(2, min(64, int(FRESH_BYTES / (first.keys.nbytes + first.values.nbytes))))
    tokens = len(batch.ids)
    q = normal(tokens, spec.heads, spec.key_dim)
    k, v = normal(tokens, spec.kv_heads, spec.key_dim), normal(tokens, spec.kv_heads, spec.value_dim)
    return Step(batch, [first, *(layer() for _ in range(count - 1))], q, k, v)


def batch_of(rows: Rows, block_size: int, device: torch.device, *, scattered: bool = True) -> Batch:
    """The batch of a step. The blocks of a row are in random order or contiguous."""
    counts, contexts = np.array(rows, np.int32).T
    needed = -(-contexts // block_size)
    blocks = int(needed.sum())
    order = np.random.default_rng(0).permutation(blocks) if scattered else np.arange(blocks)
    grid = np.zeros((len(rows), needed.max()), np.int32)
    grid[np.arange(grid.shape[1]) < needed[:, None]] = order
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    positions = np.concatenate([np.arange(context - new, context) for new, context in rows])
    cells = grid[np.repeat(np.arange(len(rows)), counts), positions // block_size].astype(np.int64)
    host = {
        "ids": np.zeros(len(positions), np.int64),
        "positions": positions,
        "places": cells * block_size + positions % block_size,
        "starts": starts,
        "contexts": contexts,
        "tables": grid,
    }
    there: dict[str, Any] = {name: torch.from_numpy(each).to(device) for name, each in host.items()}
    return Batch(
        **there,
        single=int((counts == 1).sum()),
        block_size=block_size,
        host_starts=starts,
        host_contexts=contexts,
        host_tables=grid,
    )


def check(name: str, got: Tensor, step: Step) -> None:
    oracle = TorchAttention()
    expected = oracle.attend(step.q.float(), step.k, step.v, step.layers[0], oracle.prepare(step.batch))
    error = float((got - expected).norm() / expected.norm())
    if not error < WRONG:
        raise SystemExit(f"{name}: the result is wrong, with a relative error of {error:.1e}")


def copy_speeds(bench: Bench) -> list[float]:
    """TB/s of copies many times larger than the GPU's cache, counting bytes read and written."""
    source = torch.empty(2**32, dtype=torch.uint8, device="cuda").random_()
    target, speeds = torch.empty_like(source), []
    for _ in range(bench.warmup + bench.repeats):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        target.copy_(source)
        ended.record()
        ended.synchronize()
        speeds.append(2 * source.nbytes / began.elapsed_time(ended) / 1e9)
    return speeds[bench.warmup :]


def graph_times(bench: Bench, layer: Callable[[int], Tensor], layers: int) -> list[float]:
    """Microseconds of one layer, from replays of a graph with all layers."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(layers):
            layer(index)
    samples = []
    for _ in range(bench.warmup + bench.repeats):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        for _ in range(REPLAYS):
            graph.replay()
        ended.record()
        ended.synchronize()
        samples.append(began.elapsed_time(ended) * 1e3 / REPLAYS / layers)
    return samples[bench.warmup :]
