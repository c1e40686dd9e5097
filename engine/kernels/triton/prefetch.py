"""Has the L2 cache read what a kernel needs soon, for example after it waits for the kernel before it."""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import triton
import triton.language as tl
from torch import Tensor

LINE = tl.constexpr(128)  # bytes
BULK = tl.constexpr(
    "{ .reg .pred one; .reg .b32 thread; mov.u32 thread, %tid.x; setp.eq.u32 one, thread, 0;"
    "@one cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }"
)


@triton.jit
def prefetch(pointers):
    """Each pointer's line. Writes go to the same cache, so lines that are not written yet do no harm."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def prefetch_bytes(pointer, size):
    """`size` bytes, asked for by one thread. Both are multiples of 16. For a Hopper or later."""
    tl.inline_asm_elementwise(BULK, "=r,l,r", [pointer, size], dtype=tl.int32, is_pure=False, pack=1)


def bulky(matrix: Tensor) -> bool:
    """Whether `prefetch_bytes` can take its rows."""
    return matrix.data_ptr() % 16 == 0 == matrix.stride(0) * matrix.itemsize % 16
