"""Has the L2 cache read a context while the kernel before attention still runs."""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import triton
import triton.language as tl

from engine.kernels import switches
from engine.kernels.triton.attention.tiles import Tile
from engine.kernels.triton.launch import power
from engine.kv.store import KVLayer

LINE = tl.constexpr(128)  # bytes


@triton.jit
def fetch(
    cells, table, kv_head, begin, end,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, KEYS: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """Keys or values of begin..end, each in at most LINES lines.

    Those that are not written yet do no harm: writes go to the same cache.
    """
    numbers: tl.constexpr = LINE // (cells.dtype.element_ty.primitive_bitwidth // 8)
    at = tl.minimum(tl.arange(0, LINES) * numbers, DIM - 1)
    for first in range(begin, end, KEYS):
        key = tl.minimum(first + tl.arange(0, KEYS), end - 1)
        block = tl.load(table + key // BLOCK).to(tl.int64)
        cell = (block * BLOCK + key % BLOCK) * KV_HEADS + kv_head
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [cells + cell[:, None] * DIM + at[None, :]],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


def fetched_lines(layer: KVLayer, tile: Tile) -> int:
    """Return the most lines of a key or value, if they are to be read early, else 0."""
    plain = layer.channels is None and not tile.pairs and tile.queries == 1
    if not (switches.FETCH and tile.pdl and plain):
        return 0
    wide = max(layer.spec.key_dim, layer.spec.value_dim) * layer.keys.itemsize
    return power(triton.cdiv(wide, LINE.value))
