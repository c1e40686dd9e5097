"""The kernels around the matrix products, in Triton's interpreter, against plain torch."""

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.api.cache_spec import LayerSpec
from engine.api.config import RopeSpec
from engine.kv.store import KVLayer
from engine.models.layers.norm import WideNorm
from engine.models.rope import rope_table
from tests.kernels import oracles
from tests.kernels.interpreted import Interpreted

pytest.importorskip("triton", reason="no Triton here")

TOLERANCES = {torch.float32: 1e-6, torch.float16: 2e-3}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype
    tolerance = TOLERANCES[expected.dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@DTYPES
@pytest.mark.parametrize(("width", "parts"), [(48, 0), (48, 1), (100, 3)])
def test_norm(kernels: Interpreted, width: int, parts: int, dtype: torch.dtype) -> None:
    x, weight = numbers(3, width).to(dtype), numbers(width, seed=1).to(dtype)
    added = numbers(parts, 3, width, seed=2).to(torch.float32 if parts > 1 else dtype) if parts else None
    found, (changed, *_) = kernels.call("norm.norm", "norm", x.clone(), added, weight, 1e-5)
    close(found, oracles.norm(x, added, weight, 1e-5))  # which changes x
    close(changed, x)


@DTYPES
@pytest.mark.parametrize("parts", [1, 3])
def test_a_norm_of_the_term_before_the_sum(kernels: Interpreted, parts: int, dtype: torch.dtype) -> None:
    x, weight, of_term = numbers(3, 100).to(dtype), numbers(100, seed=1).to(dtype), 1 + numbers(100, seed=3)
    added = numbers(parts, 3, 100, seed=2).to(torch.float32 if parts > 1 else dtype)
    found, (changed, *_) = kernels.call(
        "norm.norm", "normed", x.clone(), added, weight, 1e-5, rounded=False, term=(of_term, 1e-6)
    )
    term = WideNorm(torch.nn.Parameter(of_term, requires_grad=False), 1e-6)(oracles.added(added, dtype))
    close(found.values, oracles.norm(x, term[None], weight, 1e-5))  # which changes x
    close(changed, x)


def test_a_norm_whose_weight_is_applied_before_rounding(kernels: Interpreted) -> None:
    """Alone, and inside of the product of one row."""
    x, scale = numbers(1, 96).half(), torch.nn.Parameter(1 + numbers(96, seed=1), requires_grad=False)
    expected, weight = WideNorm(scale, 1e-5)(x), numbers(24, 96, seed=2).half()
    given = x.clone(), None, scale.data, 1e-5
    assert torch.equal(kernels.call("norm.norm", "norm", *given)[0], expected)
    named = {"norm_weight": scale.data, "eps": 1e-5}
    found, _ = kernels.call("gemm.skinny_gemm", "gemv", x, weight, **named)
    close(found, (expected.float() @ weight.float().T).half())


@DTYPES
@pytest.mark.parametrize(("parts", "gelu"), [(1, False), (2, False), (2, True)])
def test_swiglu(kernels: Interpreted, parts: int, gelu: bool, dtype: torch.dtype) -> None:
    both = numbers(parts, 2, 2 * 1100).to(torch.float32 if parts > 1 else dtype)
    found, _ = kernels.call("norm.swiglu", "swiglu", both, dtype, gelu=gelu)
    close(found, oracles.swiglu(both, dtype, gelu=gelu))


@DTYPES
@pytest.mark.parametrize(
    ("heads", "dim", "normed", "turned", "parts"),
    [((4, 2), 32, True, True, 1), ((3, 1), 24, False, True, 2), ((7, 1), 16, True, False, 1)],
)
def test_turn(
    kernels: Interpreted,
    heads: tuple[int, int],
    dim: int,
    normed: bool,
    turned: bool,
    parts: int,
    dtype: torch.dtype,
) -> None:
    spec = LayerSpec(heads=heads[0], kv_heads=heads[1], key_dim=dim, value_dim=dim, scale=1.0)
    cells = torch.full((3, 16, heads[1], dim), torch.nan, dtype=dtype)
    layer = KVLayer(spec, cells.clone(), cells.clone())
    rope = rope_table(RopeSpec(theta=10000.0), dim, 50, dtype) if turned else None
    weight = numbers(sum(heads), dim, seed=3).to(dtype) if normed else None
    given = numbers(parts, 5, (heads[0] + 2 * heads[1]) * dim).to(torch.float32 if parts > 1 else dtype)
    places, positions = torch.tensor([3, -1, 40, 0, -1]), torch.tensor([17, 0, 49, 3, 0])
    arguments: tuple[Any, ...] = (given, layer, weight, 1e-5, rope, positions, places)
    found, (_, written, *_) = kernels.call("kv.rope_and_cache", "rope_and_cache", *arguments, dtype=dtype)
    close(found, oracles.turn(*arguments, dtype=dtype))
    close(written.keys.nan_to_num(7.0), layer.keys.nan_to_num(7.0))
    assert torch.equal(written.values.nan_to_num(7.0), layer.values.nan_to_num(7.0))
    assert written.keys.isfinite().any(dim=(2, 3)).sum() == 3  # those of the tokens with a place


def test_embed(kernels: Interpreted) -> None:
    given = numbers(9, 1030), torch.tensor([4, -1, 0]), torch.tensor([2, 1, 0]), torch.tensor([8, 6, 7])
    found, _ = kernels.call("norm.embed", "embed", *given)
    assert torch.equal(found, oracles.embed(*given))
