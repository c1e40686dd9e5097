"""The product whose output attention reads, interpreted and on a GPU, against a product, a norm and RoPE."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from engine.api.cache_spec import LayerSpec
from engine.api.config import RopeSpec
from engine.kv.store import KVLayer
from engine.models.rope import rope_table
from tests.kernels import oracles
from tests.kernels.products.test_skinny_gemm import numbers

Call = Callable[..., Any]

pytest.importorskip("triton", reason="no Triton here")
CLOSE = {"rtol": 4e-3, "atol": 4e-3}


def layer_of(heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> KVLayer:
    """Unwritten cells hold NaN."""
    spec = LayerSpec(heads=heads, kv_heads=kv_heads, key_dim=dim, value_dim=dim, scale=1.0)
    cells = torch.full((7, 16, kv_heads, dim), torch.nan, dtype=dtype)
    return KVLayer(spec, cells.clone(), cells.clone())


@pytest.mark.parametrize(
    ("heads", "dim", "normed", "roped"),
    [
        ((4, 2), 32, True, True),
        ((3, 3), 64, False, True),
        ((7, 1), 32, True, False),
        ((2, 1), 128, False, False),
    ],
)
@pytest.mark.parametrize("pieces", [0, 3])
def test_rotated(
    call: Call, heads: tuple[int, int], dim: int, normed: bool, roped: bool, pieces: int
) -> None:
    """The last tile of rows is not full; a token without a place is not written."""
    from engine.kernels.triton.gemm.tma_gemm import Tiling
    from engine.kernels.triton.norm.norm import Normed

    dtype, rows, width = torch.float16, 21, 128
    layer = layer_of(*heads, dim, dtype)
    x = numbers(rows, width, seed=0, dtype=dtype)
    weight = (numbers((heads[0] + 2 * heads[1]) * dim, width, seed=1, dtype=torch.float32) / width**0.5).to(
        dtype
    )
    scale = numbers(sum(heads), dim, seed=2, dtype=dtype) if normed else None
    rope = rope_table(RopeSpec(theta=10000.0), dim, 50, dtype) if roped else None
    positions, places = torch.arange(rows) * 2, torch.arange(rows) * 5
    places[4] = places[rows - 1] = -1
    squares = numbers(pieces, rows, seed=3, dtype=torch.float32).square() * width if pieces else None
    given = Normed(x, squares, 1e-5)
    how = Tiling(16, dim // 2, 64, warps=4, stages=2)
    found, after = call(
        "gemm.qkv_rope", "qkv_rope", given, weight, layer, scale, 1e-6, rope, positions, places, how
    )

    product = F.linear(x.float(), weight.float())
    if squares is not None:
        product *= torch.rsqrt(squares.sum(0) / width + 1e-5)[:, None]
    parts = product.to(dtype).unsqueeze(0)
    expected = oracles.turn(parts, layer, scale, 1e-6, rope, positions, places, dtype=dtype)
    torch.testing.assert_close(found, expected, **CLOSE)
    written = after[2]
    for mine, theirs in ((written.keys, layer.keys), (written.values, layer.values)):
        torch.testing.assert_close(mine.nan_to_num(7.0), theirs.nan_to_num(7.0), **CLOSE)
        assert mine.isfinite().any(dim=(2, 3)).sum() == rows - 2


def test_a_norm_with_a_wide_weight_rounds_once(call: Call) -> None:
    """As in Gemma. Another rounding before the weight would change a third of the numbers."""
    from engine.kernels.triton.gemm.tma_gemm import Tiling
    from engine.kernels.triton.norm.norm import Normed

    dtype, rows, width = torch.float16, 16, 64
    layer = layer_of(2, 1, 32, dtype)
    x = numbers(rows, width, seed=0, dtype=dtype)
    weight = numbers(4 * 32, width, seed=1, dtype=dtype)
    scale = numbers(3, 32, seed=2, dtype=torch.float32) * 0.1 + 2
    places = torch.arange(rows)
    how = Tiling(16, 16, 64, warps=4, stages=2)
    found, _ = call(
        "gemm.qkv_rope", "qkv_rope", Normed(x), weight, layer, scale, 1e-6, None, places, places, how
    )
    parts = F.linear(x.float(), weight.float()).to(dtype).unsqueeze(0)
    expected = oracles.turn(parts, layer, scale, 1e-6, None, places, places, dtype=dtype)
    assert (found == expected).float().mean() > 0.95


def test_conditions_for_the_kernel() -> None:
    from engine.kernels.triton.gemm.qkv_rope import qkv_rope_tiling
    from engine.kernels.triton.gemm.tma_gemm import ROOM

    def fits(
        rows: int, dim: int, kind: torch.dtype = torch.bfloat16, kept: torch.dtype = torch.bfloat16, *,
        inputs: int = 256, value_dim: int = 0,
    ) -> bool:  # fmt: skip
        weight = torch.empty(4 * dim, inputs, dtype=kind, device="meta")
        spec = LayerSpec(heads=2, kv_heads=1, key_dim=dim, value_dim=value_dim or dim, scale=1.0)
        cells = torch.empty(2, 16, 1, dim, dtype=kept, device="meta")
        how = qkv_rope_tiling(rows, weight, KVLayer(spec, cells, cells))
        if how is not None:
            assert 2 * how.outputs == dim
            assert (dim + how.rows) * how.inputs * 2 * how.stages <= ROOM
            assert dim * how.rows <= how.warps * 32 * 128  # sums in registers
        return how is not None

    assert all(fits(rows, dim) for rows in (70, 100, 128, 200, 256) for dim in (32, 64, 128))
    assert not any(fits(100, dim) for dim in (16, 80, 96, 256))
    assert not fits(100, 128, torch.float32, torch.float32)
    assert not fits(100, 128, kept=torch.int8)  # a compressed cache
    assert not fits(100, 128, inputs=200)
    assert not fits(100, 128, value_dim=64)
    assert not fits(1, 128) and not fits(5000, 128)
