"""Attention over latents on a GPU in a CUDA graph: the kernel, and the products by head around it.

The sizes are DeepSeek's: 512 numbers and 64 that positions rotate, in bfloat16. Layers together are larger
than the GPU's cache. The result of the first one is checked against plain torch in float32. `--sweep`
compares tiles for rows of one token instead: heads of a program, keys, warps, stages and programs.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from benchmarks.gpu.gpu_attention import FRESH_BYTES, Rows, batch_of, copy_speeds, graph_times
from engine.api.cache_spec import LayerSpec
from engine.attention.base import KVLayer
from engine.attention.triton_backend import TritonAttention
from engine.kernels.triton.attention.tiles import Tile
from engine.kernels.triton.gemm.by_head import absorb, by_head
from minichat.bench.harness import Bench

RANK, ROTATED, UNROTATED, VALUE = 512, 64, 128, 128
CASES: dict[str, Rows] = {
    "1 x 656": [(1, 656)],
    "1 x 4096": [(1, 4096)],
    "8 x 4096": [(1, 4096)] * 8,
    "32 x 656": [(1, 656)] * 32,
    "32 x 4096": [(1, 4096)] * 32,
    "128 x 656": [(1, 656)] * 128,
    "128 x 4096": [(1, 4096)] * 128,
    "1 x 131072": [(1, 131072)],
    "512 tokens at 4096": [(512, 4096)],
}
TILES = (
    (16, 16, 4, 6, 396), (16, 32, 4, 3, 264), (16, 32, 4, 5, 264), (16, 32, 8, 3, 264), (16, 32, 8, 5, 264),
    (16, 64, 8, 3, 132), (32, 32, 8, 5, 132), (64, 32, 8, 3, 132), (64, 32, 8, 5, 132),
)  # fmt: skip
WRONG = 1e-2  # relative error from which on the result is wrong
DEVICE = torch.device("cuda", 0)


def run(
    bench: Bench,
    *,
    heads: int = 16,
    block_size: int = 16,
    sweep: bool = False,
    only: tuple[str, ...] = tuple(CASES),
) -> None:
    if not torch.cuda.is_available():
        raise SystemExit(f"gpu_latents needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    spec = LayerSpec(
        heads=heads, kv_heads=1, key_dim=RANK + ROTATED, value_dim=RANK, scale=192**-0.5, latent=True
    )
    bench.note("a device copy, read and written", copy_speeds(bench), "TB/s")
    for name in only:
        rows = CASES[name]
        for tile in TILES if sweep else ((),):
            if tile and tile[0] > max(16, heads):
                continue
            label = " ".join([name, *map(str, tile)])
            try:
                with fixed(heads, tile), torch.inference_mode():
                    attention(bench, label, spec, rows, block_size)
            except OutOfResources as error:
                print(f"{label}: {error}")
        if not sweep:
            with torch.inference_mode():
                products(bench, name, spec, rows, block_size)


def fixed(heads: int, tile: Sequence[int]) -> AbstractContextManager[Any]:
    """Choose this tile for rows of one token. None of it: the usual one."""
    from engine.kernels.triton.attention import tiles

    if not tile:
        return nullcontext()
    padded, keys, warps, stages, programs = tile
    made = Tile(1, padded, keys, warps, stages, max(1, programs // -(-heads // padded)), pdl=False)
    return patch.object(tiles, "for_tokens", lambda *given, **named: made)


def normal(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16, device=DEVICE).normal_()


def attention(bench: Bench, name: str, spec: LayerSpec, rows: Rows, block_size: int) -> None:
    """Measure attention and merge, from absorbed queries over a cache that holds the step's latents."""
    batch, backend = batch_of(rows, block_size, DEVICE), TritonAttention()
    layers = layers_of(spec, int(batch.host_tables.max()) + 1, block_size)
    q, prepared = normal(len(batch.ids), spec.heads, spec.key_dim), backend.prepare(batch)

    def layer(index: int) -> Tensor:
        return backend.mix(q, layers[index], prepared)

    got, expected = layer(0)[-1].float(), last_row(q[-1].float(), layers[0], batch.tables[-1], rows[-1][1])
    error = float((got - expected).norm() / expected.norm())
    if not error < WRONG:
        raise SystemExit(f"{name}: the result is wrong, with a relative error of {error:.1e}")
    median = bench.note(name, graph_times(bench, layer, len(layers)), "us").median
    if rows[0][0] == 1:
        read = sum(context for _, context in rows) * spec.key_dim * q.itemsize
        bench.note(f"{name}, latents read", read / median / 1e6, "TB/s")


def layers_of(spec: LayerSpec, blocks: int, block_size: int) -> list[KVLayer]:
    nbytes = blocks * block_size * spec.key_dim * 2
    made = [
        normal(blocks, block_size, 1, spec.key_dim) for _ in range(max(2, min(64, int(FRESH_BYTES / nbytes))))
    ]
    return [KVLayer(spec, keys, keys[..., : spec.value_dim]) for keys in made]


def last_row(q: Tensor, layer: KVLayer, table: Tensor, context: int) -> Tensor:
    """Attend from the step's last token in plain torch."""
    latents = layer.keys[table.long()].flatten(0, 2)[:context].float()
    weights = (q @ latents.T * layer.spec.scale).softmax(-1)
    return weights @ latents[:, : layer.spec.value_dim]


def products(bench: Bench, name: str, spec: LayerSpec, rows: Rows, block_size: int) -> None:
    """Measure the launches before and after attention."""
    batch = batch_of(rows, block_size, DEVICE)
    layers = layers_of(spec, int(batch.host_tables.max()) + 1, block_size)
    tokens, width = len(batch.ids), UNROTATED + ROTATED
    made, mixed = normal(1, tokens, spec.heads * width + spec.key_dim), normal(tokens, spec.heads, RANK)
    queries, latents = made.split_with_sizes((spec.heads * width, spec.key_dim), 2)
    q = queries.unflatten(2, (spec.heads, width))
    weights = [normal(spec.heads, UNROTATED + VALUE, RANK) for _ in layers]
    norm, rope = normal(RANK), normal(int(batch.contexts.max()) + 1, 2 * ROTATED)
    where = rope, batch.positions, batch.places
    pdl = tokens <= 32

    def before(index: int) -> Tensor:
        weight = weights[index][:, :UNROTATED]
        return absorb(
            q, latents, weight, layers[index], norm, 1e-6, *where, interleaved=True, pdl=pdl
        )  # fmt: skip

    def after(index: int) -> Tensor:
        return by_head(mixed, weights[index][:, UNROTATED:].transpose(1, 2), pdl=pdl)

    launches: dict[str, Callable[[int], Tensor]] = {"absorbed queries": before, "values": after}
    for what, launched in launches.items():
        launched(0)
        bench.note(f"{name}, {what}", graph_times(bench, launched, len(layers)), "us")
