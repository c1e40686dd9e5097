"""Random adapters; in a file of its own, since the interpreter's process imports it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.api.config import DecoderConfig
from engine.models.adapters.files import AdapterFiles, AdapterPart
from engine.models.adapters.matrices import AdapterMatrices
from engine.models.adapters.products import LowRank, ProductKey, Upload
from engine.models.adapters.table import AdapterTable
from engine.models.adapters.targets import AdapterTarget, adapter_targets

INPUTS, MODULES = 384, ((0, 150), (150, 24), (174, 24))  # the first output and the outputs of each
OUTPUTS = sum(outputs for _, outputs in MODULES)
TARGETS = [
    AdapterTarget((layer, "qkv"), INPUTS, *module, OUTPUTS) for layer in range(2) for module in MODULES
]
WIDTH = 150  # of gate and up
GATED = [AdapterTarget((0, "gate_up"), INPUTS, first, WIDTH, 2 * WIDTH) for first in (0, WIDTH)]
Ranks = tuple[int, int, int]  # of each module; 0: the adapter has none for it


def random_files(ranks: Ranks, seed: int, dtype: torch.dtype) -> AdapterFiles:
    """Make an adapter for the product of the second layer."""
    generator = torch.Generator().manual_seed(seed)
    total, key = sum(ranks), (1, "qkv")
    down = torch.randn(total, INPUTS, generator=generator) / INPUTS**0.5
    up, top = torch.zeros(total, OUTPUTS), 0
    parts = [AdapterPart(*module, rank) for module, rank in zip(MODULES, ranks, strict=True) if rank]
    for first, outputs, rank in parts:
        up[top : top + rank, first : first + outputs] = torch.randn(rank, outputs, generator=generator)
        top += rank
    pair = LowRank(down.to(dtype), (up / max(ranks) ** 0.5).to(dtype))
    return AdapterFiles(Path("adapter"), {key: pair}, {key: tuple(parts)}, max(ranks), b"")


def adapters(ranks: Mapping[int, Ranks], dtype: torch.dtype) -> dict[int, AdapterFiles]:
    return {number: random_files(each, number, dtype) for number, each in ranks.items()}


def here(device: torch.device | str) -> Upload:
    return lambda arrays: [torch.from_numpy(each).to(device) for each in arrays]


def added(ranks: Mapping[int, Ranks], rows: Sequence[int], x: Tensor, out: Tensor) -> Tensor:
    """Add to `out` what the kernels add; a product that no adapter has does not change."""
    from engine.models.adapters.launched import LaunchedAdapters

    table = AdapterTable(TARGETS, x.dtype, x.device)
    for number, files in adapters(ranks, x.dtype).items():
        table.put(number, files)
    step = LaunchedAdapters(table, torch.from_numpy(table.places(np.array(rows))).to(x.device))
    step.add(1, "qkv", x, out)
    step.add(1, "down", x, out)
    return out


def expected(ranks: Mapping[int, Ranks], rows: Sequence[int], x: Tensor, out: Tensor) -> Tensor:
    """The same by torch in float32, with the same rounded matrices."""
    matrices, wide = AdapterMatrices(torch.device("cpu")), out.float().cpu()
    for number, files in adapters(ranks, x.dtype).items():
        exact = {key: LowRank(*(half.float() for half in pair)) for key, pair in files.products.items()}
        matrices.put(number, replace(files, products=exact))
    if any(rows):
        step = matrices.of_step(np.array(rows), np.ones(len(rows), np.int64), here("cpu"))
        step.add(1, "qkv", x.float().cpu(), wide)
    return wide


def gated_adapters(ranks: Mapping[int, tuple[int, int]], dtype: torch.dtype) -> dict[int, AdapterFiles]:
    """Make adapters of gate and up."""
    found = {}
    for number, pair in ranks.items():
        generator, key = torch.Generator().manual_seed(number), (0, "gate_up")
        down = torch.randn(sum(pair), INPUTS, generator=generator) / INPUTS**0.5
        up = torch.zeros(sum(pair), 2 * WIDTH)
        up[: pair[0], :WIDTH] = torch.randn(pair[0], WIDTH, generator=generator) / 4
        up[pair[0] :, WIDTH:] = torch.randn(pair[1], WIDTH, generator=generator) / 4
        parts = tuple(
            AdapterPart(first, WIDTH, rank) for first, rank in zip((0, WIDTH), pair, strict=True) if rank
        )
        low_rank = LowRank(down.to(dtype), up.to(dtype))
        found[number] = AdapterFiles(Path("adapter"), {key: low_rank}, {key: parts}, max(pair), b"")
    return found


def activated(ranks: Mapping[int, tuple[int, int]], rows: Sequence[int], x: Tensor, parts: Tensor) -> Tensor:
    """The activation by kernels, of a product with these parts and of adapters."""
    from engine.kernels.triton.norm.norm import Normed
    from engine.models.adapters.launched import LaunchedAdapters
    from engine.quant.product import Product

    class Given(Product):
        def parts(self, x: Tensor, *, pdl: bool = False) -> Tensor:
            return parts

    table = AdapterTable(GATED, x.dtype, x.device)
    for number, files in gated_adapters(ranks, x.dtype).items():
        table.put(number, files)
    step = LaunchedAdapters(table, torch.from_numpy(table.places(np.array(rows))).to(x.device))
    return step.around(0, "gate_up", Given()).swiglu(Normed(x))


def shrunk_beside(
    ranks: Mapping[int, Ranks], rows: Sequence[int], x: Tensor, weight: Tensor, parts: int
) -> tuple[Tensor, ...]:
    """A product and `shrink` in one launch, and in one each; of `shrink`, rows with an adapter."""
    from engine.kernels.triton.gemm import low_rank
    from engine.kernels.triton.gemm.row_terms import RowAdapters
    from engine.kernels.triton.gemm.skinny_gemm import ProductTiling, skinny_gemm

    table = AdapterTable(TARGETS, x.dtype, x.device)
    for number, files in adapters(ranks, x.dtype).items():
        table.put(number, files)
    modules, places = table.modules[1, "qkv"], torch.from_numpy(table.places(np.array(rows))).to(x.device)
    own, rank = table.numbers[:, modules.columns], table.layout.rank
    given = RowAdapters(own, places, rank, modules.outputs, modules.aligned, x.dtype)
    cut = ProductTiling(64, 64, warps=4, stages=2, parts=parts)
    out, narrow = low_rank.skinny_gemm_shrink(x, weight, cut, given)
    alone, own = low_rank.shrink(x, given), places > 0
    return out, narrow[:, own], skinny_gemm(x, weight, cut), alone[:, own]


def expected_activation(
    ranks: Mapping[int, tuple[int, int]], rows: Sequence[int], x: Tensor, parts: Tensor
) -> Tensor:
    """The same by torch in float32, with the same rounded matrices."""
    matrices, wide = AdapterMatrices(torch.device("cpu")), parts.float().cpu().sum(0)
    for number, files in gated_adapters(ranks, x.dtype).items():
        exact = {key: LowRank(*(half.float() for half in pair)) for key, pair in files.products.items()}
        matrices.put(number, replace(files, products=exact))
    step = matrices.of_step(np.array(rows), np.ones(len(rows), np.int64), here("cpu"))
    step.add(0, "gate_up", x.float().cpu(), wide)
    gate, up = wide.chunk(2, 1)
    return torch.nn.functional.silu(gate) * up


def empty_adapter(config: DecoderConfig, rank: int, products: int = 4) -> AdapterFiles:
    """Make an adapter of the first products of each layer, on the current default device."""
    parts: dict[ProductKey, tuple[AdapterPart, ...]] = {}
    shapes: dict[ProductKey, tuple[int, int]] = {}
    for each in adapter_targets(config).values():
        key = each.product
        if key in parts or sum(layer == key[0] for layer, _ in parts) < products:
            parts[key] = (*parts.get(key, ()), AdapterPart(each.first, each.outputs, rank))
            shapes[key] = each.inputs, each.whole
    pairs = {
        key: LowRank(*(torch.empty(rank * len(parts[key]), width) for width in widths))
        for key, widths in shapes.items()
    }
    return AdapterFiles(Path("adapter"), pairs, parts, rank, b"")


def random_adapter(config: DecoderConfig, rank: int, seed: int, dtype: torch.dtype) -> AdapterFiles:
    """Make an adapter of all products, as large as rounding allows to compare."""
    generator, files = torch.Generator().manual_seed(seed), empty_adapter(config, rank)
    for key, (down, up) in files.products.items():
        down.normal_(0, down.shape[1] ** -0.5, generator=generator)
        up.zero_()
        for nth, part in enumerate(files.parts[key]):
            rows, outputs = up[nth * rank : (nth + 1) * rank], slice(part.first, part.first + part.outputs)
            rows[:, outputs].normal_(0, 0.1, generator=generator)
    pairs = {key: LowRank(*(half.to(dtype) for half in pair)) for key, pair in files.products.items()}
    return replace(files, products=pairs)
