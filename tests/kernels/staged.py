"""Blocks moved to rows and back; in a file of its own, since the interpreter's process imports it."""

from collections.abc import Callable

from torch import Tensor

from engine.execution.cache_blocks import Staging


def staged_by_kernel(tensors: list[Tensor], rows: Tensor, out: bool) -> list[Tensor]:
    from engine.kernels.triton.kv.blocks import RowStaging

    return staged(RowStaging, tensors, rows, out)


def staged(staging: Callable[..., Staging], tensors: list[Tensor], rows: Tensor, out: bool) -> list[Tensor]:
    """Three blocks in pieces of two; return the tensors, then the rows."""
    pieces = staging(tensors, rows, [8, 0, 3], out=out)
    pieces.move(0, 2)
    pieces.move(2, 1)
    return [*tensors, rows]
