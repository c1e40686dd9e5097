"""Attention on a CPU beside its alternatives: products, padded batches, blocks, the kernel in C, prompts.

Contenders alternate; a figure is processor time. H16 KV4: 16 heads over 4 key heads of 64. The last contender
is what the torch backend does, and the results of the others are compared with its own.
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import product
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu.gpu_attention import Rows, batch_of
from engine.api.cache_spec import LayerSpec
from engine.attention.base import KVLayer
from engine.attention.torch_backend import TorchAttention, score, weigh
from engine.kernels.cpu.compiled import attention
from minichat.bench.harness import Bench, note_all, rounds

DIM, BLOCK = 64, 16
HEADS = {"H16 KV4": (16, 4), "H12 KV12": (12, 12)}
CLOSE = 2e-2  # relative errors of products in 16 bits
SHORTEST = 0.01  # seconds of a sample

Ways = dict[str, Callable[[], Tensor]]


def products(heads: int, groups: int, dtype: torch.dtype, context: int, rows: int) -> Ways:
    """One row of one token."""
    q = torch.randn(1, heads, 1, DIM).to(dtype)
    k, v = (torch.randn(1, groups, context, DIM).to(dtype) for _ in range(2))
    grouped = q.view(1, groups, heads // groups, DIM)

    def plainly(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.bmm(weigh(score(q * DIM**-0.5, k.transpose(1, 2), None), None), v)

    return {
        "SDPA, enable_gqa": partial(F.scaled_dot_product_attention, q, k, v, enable_gqa=True),
        "SDPA, group as queries": partial(F.scaled_dot_product_attention, grouped, k, v),
        "bmm": lambda: plainly(grouped[0], k[0], v[0]),
        "float32, then bmm": lambda: plainly(grouped[0].float(), k[0].float(), v[0].float()),
    }


def padded(heads: int, groups: int, dtype: torch.dtype, context: int, rows: int) -> Ways:
    """Many rows: a batch with all blocks gathered and masked, and one row after the other."""
    given = [(1, context)] * rows
    layer, (q, *_), attend = step(heads, groups, dtype, given)
    tables = batch_of(given, BLOCK, torch.device("cpu")).tables.long()
    hidden = (torch.arange(tables.shape[1] * BLOCK) >= context)[None]
    grouped = q.view(rows, groups, -1, DIM)

    def gathered() -> Tensor:
        keys, values = (x[tables].flatten(1, 2).transpose(1, 2) for x in (layer.keys, layer.values))
        mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)
        return F.scaled_dot_product_attention(grouped, keys, values, mask)

    attend()  # writes the cells of the last token, which `gathered` reads
    return {"padded, gathered": gathered, "row by row": attend}


def blocks(heads: int, groups: int, dtype: torch.dtype, context: int, rows: int) -> Ways:
    """One row whose blocks are scattered, or not."""
    given = [(1, context)]
    return {
        "scattered": step(heads, groups, dtype, given)[2],
        "contiguous": step(heads, groups, dtype, given, scattered=False)[2],
    }


def compiled(heads: int, groups: int, dtype: torch.dtype, context: int, rows: int) -> Ways:
    """Rows of one token by torch's operations, and by the kernel in C, which takes bfloat16."""
    attend = step(heads, groups, dtype, [(1, context)] * rows)[2]

    def by_torch() -> Tensor:
        with patch.object(attention, "takes", lambda layer, q: False):
            return attend()

    return {"torch's operations": by_torch, "compiled": attend}


def chunks(heads: int, groups: int, dtype: torch.dtype, context: int, rows: int) -> Ways:
    """A whole prompt."""
    _, (q, k, v), attend = step(heads, groups, dtype, [(context, context)], scattered=False)
    wide = q.transpose(0, 1)[None]
    keys, values = (x.transpose(0, 1).repeat_interleave(heads // groups, 0)[None] for x in (k, v))
    mask = torch.full((context, context), -torch.inf, dtype=dtype).triu_(1)

    def sdpa(**how: Tensor | bool) -> Tensor:
        out: Tensor = F.scaled_dot_product_attention(wide, keys, values, **how)  # type: ignore[arg-type]
        return out[0].transpose(0, 1)

    return {
        "SDPA with a mask": lambda: sdpa(attn_mask=mask),
        "SDPA, is_causal": lambda: sdpa(is_causal=True),
        "bmm, in tiles": attend,
    }


def step(
    heads: int, groups: int, dtype: torch.dtype, rows: Rows, *, scattered: bool = True
) -> tuple[KVLayer, tuple[Tensor, Tensor, Tensor], Callable[[], Tensor]]:
    """A layer, a step's queries, keys and values, and the torch backend's call with them."""
    spec = LayerSpec(heads=heads, kv_heads=groups, key_dim=DIM, value_dim=DIM, scale=DIM**-0.5)
    batch = batch_of(rows, BLOCK, torch.device("cpu"), scattered=scattered)
    shape = (int(batch.host_tables.max()) + 1, BLOCK, groups, DIM)
    layer = KVLayer(spec, *(torch.randn(shape).to(dtype) for _ in range(2)))
    q, k, v = (torch.randn(len(batch.ids), each, DIM).to(dtype) for each in (heads, groups, groups))
    own = TorchAttention()
    return layer, (q, k, v), partial(own.attend, q, k, v, layer, own.prepare(batch))


def compared(label: str, ways: Ways) -> None:
    *others, own = (way().float().flatten() for way in ways.values())
    for name, other in zip(ways, others, strict=False):
        if not (other - own).norm() < CLOSE * own.norm():
            raise SystemExit(f"{label}: the result of {name!r} differs")


def seconds(call: Callable[[], Tensor]) -> float:
    """Processor time of a call, from as many as a sample needs."""
    began, times = time.process_time(), 0
    while (spent := time.process_time() - began) < SHORTEST or not times:
        call()
        times += 1
    return spent / times


PARTS = {each.__name__: each for each in (products, padded, blocks, compiled, chunks)}


def run(
    bench: Bench,
    *,
    only: tuple[str, ...] = tuple(PARTS),
    dtypes: tuple[str, ...] = ("float32", "bfloat16"),
    contexts: tuple[int, ...] = (64, 1024, 2048),
    rows: int = 64,
    threads: int = 1,
) -> None:
    """`rows`: of `padded` and `compiled`."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    for part, dtype, heads, context in product(only, dtypes, HEADS, contexts):
        label = f"{part}, {heads}, {dtype}, {context} tokens"
        with torch.inference_mode():
            ways = PARTS[part](*HEADS[heads], getattr(torch, dtype), context, rows)
            if part != "blocks":  # their numbers differ
                compared(label, ways)
            note_all(bench, label, rounds(bench, {name: partial(seconds, way) for name, way in ways.items()}))
