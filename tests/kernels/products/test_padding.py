"""Tiles of rows that extend into the memory after them, which may hold anything."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.kernels.products.test_skinny_gemm import numbers

pytest.importorskip("triton", reason="no Triton here")

TILES = (16, 32, 64, 128)


def test_there_is_room_for_whole_tiles() -> None:
    from engine.kernels.triton.padding import MOST, padded_rows, readable_rows

    like = torch.empty(0, dtype=torch.float16)
    for rows in range(1, MOST + 1):
        found = padded_rows(rows, 2, 4, like=like)
        assert found.shape == (rows, 2, 4) and found.is_contiguous() and found.dtype is torch.float16
        for tile in TILES:
            if tile < max(17, 2 * rows):  # no product uses larger tiles
                assert readable_rows(found.flatten(1), tile) == -(-rows // tile) * tile, (rows, tile)
    assert padded_rows(3, 8, like=like, dtype=torch.float32).dtype is torch.float32
    assert padded_rows(MOST + 1, 8, like=like).untyped_storage().nbytes() == (MOST + 1) * 8 * 2


def test_no_row_is_read_beyond_the_memory() -> None:
    from engine.kernels.triton.padding import readable_rows

    memory = torch.empty(64, 8)
    assert readable_rows(memory[:33], 32) == 64
    assert readable_rows(memory[:33], 128) == 33
    assert readable_rows(memory[40:], 32) == 24
    assert readable_rows(memory[32:33], 32) == 32
    assert readable_rows(memory[33:34], 32) == 1
    assert readable_rows(memory[:33, 4:], 64) == 64
    assert readable_rows(memory[1:34, 4:], 64) == 33


@pytest.mark.parametrize("gated", [False, True])
def test_memory_after_the_rows_does_not_change_them(call: Callable[..., Any], gated: bool) -> None:
    from engine.kernels.triton.gemm.tma_gemm import Tiling
    from engine.kernels.triton.norm.norm import Normed

    weight = numbers(144, 128, seed=1, dtype=torch.float16)
    memory = numbers(64, 128, seed=0, dtype=torch.float16)
    how = Tiling(32, 32, 64, warps=4, stages=2)
    for squares in (None, torch.rand(2, 40)):
        expected, _ = call(
            "gemm.tma_gemm", "tma_gemm", Normed(memory[:40].clone(), squares, 1e-5), weight, how, gated=gated
        )
        memory[40:] = torch.nan
        found, _ = call(
            "gemm.tma_gemm", "tma_gemm", Normed(memory[:40], squares, 1e-5), weight, how, gated=gated
        )
        assert torch.equal(found, expected) and found.isfinite().all()
