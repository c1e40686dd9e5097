"""What a row's adapter adds to a product, for kernels that read the product and have a row per program.

`shrink` (low_rank.py) makes a few numbers of each row. The kernel that reads the product multiplies them by
the adapter's `up`, so that no launch between the two adds to the product. It finds `up` before it waits for
the product.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

FIELDS = tl.constexpr(8)  # numbers for each module of an adapter: see table.py of the adapters
MOST_RANKS = 32  # with more, their matrices do not fit in registers


@dataclass(frozen=True, slots=True)
class RowAdapters:
    """Where the kernels find the adapters of a product's modules, and of each row."""

    table: Tensor  # [places, modules, fields]: the modules of one product
    places: Tensor  # [rows]: where each one's adapter is in the table
    rank: int  # the largest, a power of two
    outputs: tuple[int, ...]  # of each module
    aligned: int  # a power of two that divides where modules begin and end, at most 16
    dtype: torch.dtype  # of the matrices


@dataclass(frozen=True, slots=True)
class RowTerms:
    """What is still to be added to a product of few rows."""

    narrow: Tensor  # [parts, rows, modules, rank]: from `shrink`
    adapters: RowAdapters


def given(terms: RowTerms | None) -> dict[str, Any]:
    """Return the arguments of a kernel that adds the terms."""
    if terms is None:
        return {**dict.fromkeys(("narrow", "adapters", "table", "table_stride")), "TERM_PARTS": 0, "RANK": 0}
    own = terms.adapters
    return {
        "narrow": terms.narrow, "adapters": own.places, "table": own.table,
        "table_stride": own.table.stride(0), "TERM_PARTS": len(terms.narrow), "RANK": own.rank,
    }  # fmt: skip


@triton.jit
def up_of(adapters, table, token, table_stride, nth, dtype: tl.constexpr):
    """A pointer to `up` of a token's adapter for the nth module, and its rank, 0 if there is none."""
    place = tl.load(adapters + token).to(tl.int32)
    at = table + place * table_stride + nth * FIELDS
    return tl.multiple_of(tl.load(at + 1).to(tl.pointer_type(dtype)), 16), tl.load(at + 2).to(tl.int32)


@triton.jit
def narrow_of(narrow, deep, rank, part_stride, PARTS: tl.constexpr, dtype: tl.constexpr):
    """Some ranks of a row, rounded as the matrices are."""
    of_rank = narrow + tl.arange(0, PARTS)[:, None] * part_stride + deep[None, :]
    made = tl.load(of_rank, mask=(deep < rank)[None, :], other=0.0)
    return tl.sum(made, 0).to(dtype).to(tl.float32)
