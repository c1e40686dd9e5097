"""What the programs of a product read ahead; the interpreter's process imports this."""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl

from engine.kernels.triton.gemm.low_rank import up_lines
from tests.kernels.products.read_terms import INPUTS, RANKS, ROWS, adapted, drawn


@triton.jit
def _lines(
    out, places, table, rows, table_stride, OUTPUTS: tl.constexpr, RANK: tl.constexpr, LINES: tl.constexpr,
    KIND: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    found = up_lines(places, table, rows, table_stride, program, OUTPUTS, RANK, LINES, 4, 16, KIND)
    tl.store(out + program * 128 + tl.arange(0, 128), found.to(tl.int64))


def lines_ahead(outputs: int, programs: int) -> tuple[set[int], set[int], range]:
    """The lines of which programs read the first ones of `up`, those expected, and the table's addresses."""
    x = drawn(len(ROWS), INPUTS, seed=0, like=torch.float16, device="cpu")
    table, places, _ = adapted([outputs], RANKS, x, torch.zeros(1, len(ROWS), outputs))
    found = torch.zeros(programs, 128, dtype=torch.int64)
    across = -(-outputs // 16) * 16
    share = -(-16 * across * 2 // 128 // programs) + 1
    given = places, table.numbers, len(ROWS), table.numbers.stride(0)
    _lines[(programs,)](found, *given, OUTPUTS=outputs, RANK=16, LINES=share, KIND=tl.float16)
    expected = set()
    for _, up, rank, *_ in table.numbers[1:5, 0].tolist():
        expected |= set(range(up, up + rank * across * 2, 128))
    ends = table.numbers.data_ptr(), table.numbers.data_ptr() + table.numbers.nbytes
    return set(found.flatten().tolist()), expected, range(*ends)
