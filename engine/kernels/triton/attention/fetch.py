"""Has the L2 cache read a context while the kernel before attention still runs."""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import triton
import triton.language as tl

LINE = tl.constexpr(128)  # bytes


@triton.jit
def _fetch_rows(rows, WIDTH: tl.constexpr, LINES: tl.constexpr):
    """`rows`: the first of each row's WIDTH numbers, in at most LINES lines."""
    numbers: tl.constexpr = LINE // (rows.dtype.element_ty.primitive_bitwidth // 8)
    at = tl.minimum(tl.arange(0, LINES) * numbers, WIDTH - 1)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [rows[:, None] + at[None, :]],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def fetch(
    keys, values, table, kv_head, begin, end,
    KV_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK: tl.constexpr,
    KEYS: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """Keys and values of begin..end. Those not written yet do no harm: writes go to the same cache."""
    for at in range(begin, end, KEYS):
        key = tl.minimum(at + tl.arange(0, KEYS), end - 1)
        block = tl.load(table + key // BLOCK).to(tl.int64)
        cell = (block * BLOCK + key % BLOCK) * KV_HEADS + kv_head
        _fetch_rows(keys + cell * KEY_DIM, KEY_DIM, LINES)
        _fetch_rows(values + cell * VALUE_DIM, VALUE_DIM, LINES)
