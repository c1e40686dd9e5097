"""Kernels that add what adapters add to a product that they read; the interpreter's process imports this."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from engine.api.cache_spec import LayerSpec
from engine.api.config import RopeSpec
from engine.kv.store import KVLayer
from engine.models.adapters.files import AdapterFiles, AdapterPart
from engine.models.adapters.products import LowRank
from engine.models.adapters.table import AdapterTable
from engine.models.adapters.targets import AdapterTarget
from engine.models.rope import rope_table

INPUTS = 128
ROWS = [1, 0, 2, 0, 3, 4, 1]  # the adapter of each; there are more than one product takes at once
RANKS = {1: 3, 2: 16, 3: 1, 4: 8}
Tensors = tuple[Tensor, ...]


def adapted(
    modules: Sequence[int], ranks: dict[int, int], x: Tensor, parts: Tensor, *, wide: int = 0
) -> tuple[AdapterTable, Tensor, Tensor]:
    """A table of random adapters, the place of each row's, and the first part with what they add.

    `wide`: the module that the first adapter has none for.
    """
    firsts = [sum(modules[:nth]) for nth in range(len(modules))]
    shapes, whole, inputs = list(zip(firsts, modules, strict=True)), sum(modules), x.shape[1]
    table = AdapterTable(
        [AdapterTarget((0, "it"), inputs, *each, whole) for each in shapes], x.dtype, x.device
    )
    rows, added = np.array(ROWS), parts[0].float().cpu().clone()
    for number, rank in ranks.items():
        draw = torch.Generator().manual_seed(number)
        of = [AdapterPart(*each, rank) for nth, each in enumerate(shapes) if number > 1 or nth != wide - 1]
        down = (torch.randn(rank * len(of), inputs, generator=draw) / inputs**0.5).to(x.dtype)
        up = torch.zeros(len(down), whole)
        for nth, part in enumerate(of):
            mine = torch.randn(rank, part.outputs, generator=draw) / rank**0.5
            up[nth * rank : (nth + 1) * rank, part.first : part.first + part.outputs] = mine
        up = up.to(x.dtype)
        key = (0, "it")
        table.put(number, AdapterFiles(Path("it"), {key: LowRank(down, up)}, {key: tuple(of)}, rank, b""))
        own = rows == number
        added[own] += (x[own].float().cpu() @ down.float().T) @ up.float()
    places = torch.from_numpy(table.places(rows)).to(x.device)
    return table, places, torch.cat((added[None].to(parts), parts[1:]))


def drawn(*shape: int, seed: int, like: torch.dtype, device: str) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, like)


def product_and_terms(
    dtype: torch.dtype, modules: Sequence[int], rank: int, inputs: int, device: str, at_once: int | None
) -> dict[str, Tensor] | None:
    """A product and its terms in one launch, the second of two, and the same in several.

    `at_once`: programs of the GPU, with turns as short as cut the inputs of small products. None: see engine.
    """
    from engine.kernels.triton.gemm import gemm_with_terms, low_rank
    from engine.kernels.triton.gemm.row_terms import RowAdapters
    from engine.kernels.triton.gemm.skinny_gemm import skinny_gemm, skinny_gemm_tiling

    x = drawn(len(ROWS), inputs, seed=0, like=dtype, device=device)
    weight = drawn(sum(modules), inputs, seed=1, like=dtype, device=device) / inputs**0.5
    cut = skinny_gemm_tiling(len(x), weight)
    assert cut is not None
    alone = skinny_gemm(x, weight, cut)
    table, places, summed = adapted(modules, RANKS | {2: rank}, x, torch.zeros_like(alone), wide=2)
    own = RowAdapters(table.numbers, places, table.layout.rank, tuple(modules), 1, dtype)
    with ExitStack() as patches:
        if at_once is not None:
            patches.enter_context(patch.object(low_rank, "_BYTES", 2**11))
            patches.enter_context(patch.multiple(gemm_with_terms, AT_ONCE=at_once, LONG=0))
        gemm_with_terms.gemm_with_terms(x, weight, cut, own)
        found = gemm_with_terms.gemm_with_terms(x, weight, cut, own)
    if found is None:
        return None
    return {"parts": found, "alone": alone, "terms": summed[0], "counters": table.numbers[0, :, 5:]}


def normed_sums(
    dtype: torch.dtype, rank: int, width: int, count: int, between: bool, device: str
) -> tuple[Tensors, Tensors]:
    """The stream and the norm, with the terms added by the kernel, and before it.

    `between`: the sum is normed before it is added to the stream.
    """
    from engine.kernels.triton.gemm.low_rank import shrink
    from engine.kernels.triton.gemm.row_terms import RowAdapters, RowTerms
    from engine.kernels.triton.norm.norm import normed

    x = drawn(len(ROWS), INPUTS, seed=0, like=dtype, device=device)
    parts = drawn(count, len(ROWS), width, seed=1, like=torch.float32, device=device)
    stream = drawn(len(ROWS), width, seed=2, like=dtype, device=device)
    weight = drawn(width, seed=3, like=dtype, device=device)
    table, places, summed = adapted([width], RANKS | {2: rank}, x, parts)
    own = RowAdapters(table.numbers, places, table.layout.rank, (width,), 1, dtype)
    terms = RowTerms(shrink(x, own), own)
    mine, theirs = stream.clone(), stream.clone()
    term = (1 + drawn(width, seed=4, like=torch.float32, device=device), 1e-6) if between else None
    found = normed(mine, parts, weight, 1e-6, terms=terms, term=term, rounded=False).values
    expected = normed(theirs, summed, weight, 1e-6, term=term, rounded=False).values
    plain = normed(stream, parts, weight, 1e-6, term=term, rounded=False).values
    return (mine, found, plain), (theirs, expected)


def rotated_sums(
    dtype: torch.dtype,
    rank: int,
    heads: tuple[int, int],
    dim: int,
    share: float,
    normed: bool,
    device: str,
) -> tuple[Tensors, Tensors]:
    """Queries, keys and values, with the terms added by the kernel, and before it."""
    from engine.kernels.triton.gemm.low_rank import shrink
    from engine.kernels.triton.gemm.row_terms import RowAdapters, RowTerms
    from engine.kernels.triton.kv.rope_and_cache import rope_and_cache

    modules = (heads[0] * dim, heads[1] * dim, heads[1] * dim)
    x = drawn(len(ROWS), INPUTS, seed=0, like=dtype, device=device)
    parts = drawn(2, len(ROWS), sum(modules), seed=1, like=torch.float32, device=device)
    scale = drawn(sum(heads), dim, seed=2, like=dtype, device=device) if normed else None
    table, places, summed = adapted(modules, RANKS | {2: rank}, x, parts, wide=2)
    own = RowAdapters(table.numbers, places, table.layout.rank, modules, 1, dtype)
    terms = RowTerms(shrink(x, own), own)
    rope = rope_table(RopeSpec(theta=10000.0, share=share), dim, 50, dtype).to(device) if share else None
    spec = LayerSpec(heads=heads[0], kv_heads=heads[1], key_dim=dim, value_dim=dim, scale=1.0)
    at = torch.arange(len(ROWS), device=device)

    def run(given: Tensor, terms: RowTerms | None) -> Tensors:
        cells = torch.zeros(1, 16, heads[1], dim, dtype=dtype, device=device)
        layer = KVLayer(spec, cells, cells.clone())
        q = rope_and_cache(given, layer, scale, 1e-6, rope, at * 3, at, dtype=dtype, terms=terms)
        return q, layer.keys, layer.values

    return (*run(parts, terms), run(parts, None)[0]), run(summed, None)
