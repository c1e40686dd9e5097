"""Has the L2 cache read a context while the kernel before attention still runs."""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import triton
import triton.language as tl

from engine.kernels.triton.attention.tiles import Tile
from engine.kernels.triton.launch import power
from engine.kernels.triton.prefetch import LINE, prefetch
from engine.kv.store import KVLayer


@triton.jit
def fetch(
    keys, values, table, kv_head, begin, end,
    KV_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK: tl.constexpr,
    KEYS: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """Keys and values of begin..end, each in at most LINES lines."""
    numbers: tl.constexpr = LINE // (keys.dtype.element_ty.primitive_bitwidth // 8)
    at = tl.arange(0, LINES) * numbers
    for first in range(begin, end, KEYS):
        key = tl.minimum(first + tl.arange(0, KEYS), end - 1)
        block = tl.load(table + key // BLOCK).to(tl.int64)
        cell = ((block * BLOCK + key % BLOCK) * KV_HEADS + kv_head)[:, None]
        prefetch(keys + cell * KEY_DIM + tl.minimum(at, KEY_DIM - 1)[None, :])
        prefetch(values + cell * VALUE_DIM + tl.minimum(at, VALUE_DIM - 1)[None, :])


def fetched_lines(layer: KVLayer, tile: Tile) -> int:
    """Return the most lines of a key or value, if they are to be read early, else 0."""
    if not tile.fetch or layer.channels is not None:
        return 0
    wide = max(layer.spec.key_dim, layer.spec.value_dim) * layer.keys.itemsize
    return power(triton.cdiv(wide, LINE.value))
