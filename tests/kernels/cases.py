"""Random batches as on a GPU, with long contexts and strided keys, built without a loop over tokens."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from engine.api.cache_spec import KvSchemeName, LayerSpec
from engine.attention.base import KVLayer
from engine.attention.packing import pack
from engine.kv.store import PACKED
from tests.attention.cases import Case, make_batch


def make_long_case(
    spec: LayerSpec,
    rows: Sequence[tuple[int, int]],
    *,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    sinks: bool = False,
    seed: int = 0,
) -> Case:
    """`rows` are (tokens, context). Blocks are in random places; cells that no row has written hold NaN."""
    spec = replace(spec, sinks=sinks)
    needed = [-(-context // block_size) for _, context in rows]
    order = np.random.default_rng(seed).permutation(sum(needed) + 3)
    tables = [part.tolist() for part in np.split(order[: sum(needed)], np.cumsum(needed)[:-1])]
    batch = make_batch(rows, tables, block_size)
    before = [
        np.asarray(table)[np.arange(context - count) // block_size] * block_size
        + np.arange(context - count) % block_size
        for (count, context), table in zip(rows, tables, strict=True)
    ]
    written = torch.from_numpy(np.concatenate(before)).to(device)
    rng = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, device=device).to(dtype)

    def cells(dim: int) -> Tensor:
        made = torch.full(
            (len(order) * block_size, spec.kv_heads, dim), torch.nan, dtype=dtype, device=device
        )
        made[written] = normal(len(written), spec.kv_heads, dim)
        return made.view(len(order), block_size, spec.kv_heads, dim)

    layer = KVLayer(spec, cells(spec.key_dim), cells(spec.value_dim), normal(spec.heads) if sinks else None)
    tokens = sum(count for count, _ in rows)
    # As in the models, queries and keys are views of one tensor.
    qk = normal(tokens, spec.heads + spec.kv_heads, spec.key_dim)
    q, k = qk.split((spec.heads, spec.kv_heads), dim=1)
    on_device = {
        name: getattr(batch, name).to(device)
        for name in ("ids", "positions", "places", "starts", "contexts", "tables")
    }
    return Case(replace(batch, **on_device), layer, q, k, normal(tokens, spec.kv_heads, spec.value_dim))


def packed(case: Case, scheme: KvSchemeName) -> Case:
    """Return the same case over a compressed cache."""
    layer, kind = case.layer, PACKED[scheme]
    keys, key_scales = pack(layer.keys, kind)
    values, value_scales = pack(layer.values, kind)
    return replace(case, layer=KVLayer(layer.spec, keys, values, layer.sinks, key_scales, value_scales))
