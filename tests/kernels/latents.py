"""Batches over a cache of latents, and their results by the Triton backend and by the torch backend."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from engine.api.cache_spec import LayerSpec
from engine.attention.base import Batch, KVLayer, LatentProjections
from engine.attention.torch_backend import TorchAttention
from tests.kernels.cases import make_long_case

# Of each head: numbers of a key that positions do not rotate, those that they do, and of a value.
SMALL, DEEPSEEK = (12, 6, 10), (128, 64, 128)


def spec_of(heads: int, rank: int, sizes: tuple[int, int, int], **limit: int) -> LayerSpec:
    unrotated, rotated, _ = sizes
    scale = (unrotated + rotated) ** -0.5
    return LayerSpec(
        heads=heads, kv_heads=1, key_dim=rank + rotated, value_dim=rank, scale=scale, latent=True, **limit
    )


def latent_case(
    spec: LayerSpec,
    rows: Sequence[tuple[int, int]],
    sizes: tuple[int, int, int],
    dtype: torch.dtype,
    device: str,
    block_size: int = 16,
) -> tuple[Batch, KVLayer, Tensor, Tensor, LatentProjections]:
    """Return a batch, its cache, queries, latents and projections. Unwritten cells hold NaN."""
    case = make_long_case(spec, rows, block_size=block_size, dtype=dtype, device=torch.device(device))
    rng = torch.Generator(device).manual_seed(7)
    unrotated, rotated, value = sizes
    q = torch.randn(len(case.q), spec.heads, unrotated + rotated, generator=rng, device=device).to(dtype)
    weight = torch.randn(spec.heads, unrotated + value, spec.value_dim, generator=rng, device=device)
    up = LatentProjections((weight * spec.value_dim**-0.5).to(dtype), unrotated)
    return case.batch, layer_of(spec, case.layer.keys), q, case.k, up


def layer_of(spec: LayerSpec, keys: Tensor) -> KVLayer:
    return KVLayer(spec, keys, keys[..., : spec.value_dim])


def both(
    spec: LayerSpec,
    rows: Sequence[tuple[int, int]],
    sizes: tuple[int, int, int],
    dtype: torch.dtype,
    device: str = "cpu",
    block_size: int = 16,
    tile: Mapping[str, int] = {},
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the outputs of the kernels and of the oracle, and their caches. `tile`: changes of each tile."""
    from engine.attention.triton_backend import TritonAttention
    from engine.kernels.triton.attention import tiles

    batch, layer, q, k, up = latent_case(spec, rows, sizes, dtype, device, block_size)
    other, oracle, backend = layer_of(spec, layer.keys.clone()), TorchAttention(), TritonAttention()

    def changed(make: Any) -> Any:
        return lambda *given, **named: replace(make(*given, **named), **tile)

    with (
        torch.inference_mode(),
        patch.object(tiles, "for_tokens", changed(tiles.for_tokens)),
        patch.object(tiles, "for_chunks", changed(tiles.for_chunks)),
    ):
        found = backend.attend_latents(q, k, up, layer, backend.prepare(batch))
        expected = oracle.attend_latents(q.float(), k, up, other, oracle.prepare(batch))
    return found, expected, layer.keys, other.keys


def replayed(
    spec: LayerSpec, rows: Sequence[tuple[int, int]], sizes: tuple[int, int, int], dtype: torch.dtype,
    device: str = "cpu",
) -> tuple[Tensor, Tensor, bool]:  # fmt: skip
    """Return the output with a graph's work lists, on a GPU in a graph, that of the oracle, and whether a
    decode was split.
    """
    from engine.attention.graph_work import GraphWork
    from engine.attention.triton_backend import TritonAttention

    batch, layer, q, k, up = latent_case(spec, rows, sizes, dtype, device)
    other, oracle, backend = layer_of(spec, layer.keys.clone()), TorchAttention(), TritonAttention()
    lengths, count = np.diff(batch.host_starts), len(q)
    size = count if count == 1 else count + 1
    work = GraphWork([spec], size, dtype, torch.device(device), pieces=bool(lengths.max() > 1))
    numbers = np.full(work.numbers, 99, np.int32)
    cut = work.fill(numbers, np.arange(len(rows)), batch.host_contexts, lengths)
    slots, contexts = torch.zeros(2, size, dtype=torch.int64, device=device)
    places = torch.full((size,), -1, device=device)
    places[:count] = batch.places
    given = torch.from_numpy(numbers).to(device), batch.tables, slots, contexts
    prepared = work.metadata(*given, cut=cut, decodes=bool(lengths.min() == 1))
    queries, latents = (
        torch.full((size, *each.shape[1:]), torch.nan, dtype=dtype, device=device) for each in (q, k)
    )
    queries[:count], latents[:count] = q, k
    with torch.inference_mode():
        found = backend.attend_plainly(queries, latents, up, layer, prepared, places)
        if device == "cuda":
            found = captured(lambda: backend.attend_plainly(queries, latents, up, layer, prepared, places))
        expected = oracle.attend_latents(q.float(), k, up, other, oracle.prepare(batch))
    return found[:count], expected, cut


def captured(launches: Any) -> Tensor:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found: Tensor = launches()
    found.fill_(torch.nan)
    graph.replay()
    return found
