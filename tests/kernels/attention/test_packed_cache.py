"""A compressed cache and a window with sinks, in Triton's interpreter."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.api.cache_spec import KvSchemeName, LayerSpec
from engine.api.config import RopeSpec
from engine.attention.packing import pack
from engine.kv.store import KVLayer, bits
from engine.models.rope import rope_table
from tests.attention import oracle
from tests.attention.cases import Case, make_case
from tests.attention.test_torch_backend import SLOPES
from tests.cases import soak
from tests.kernels import oracles
from tests.kernels.attention.test_attention import run_torch
from tests.kernels.cases import packed
from tests.kernels.interpreted import Interpreted

pytest.importorskip("triton", reason="no Triton here")

PACKED = pytest.mark.parametrize("scheme", ["int8", "fp8"])
PACKED_ALIKE = pytest.mark.parametrize("scheme", ["int8", *soak("fp8")])  # what reads both the same way
SPEC = LayerSpec(heads=6, kv_heads=2, key_dim=24, value_dim=24, scale=0.2)


def same(mine: KVLayer, theirs: KVLayer) -> None:
    for a, b in zip(mine.tensors(), theirs.tensors(), strict=True):
        known = ~b.isnan() if b.dtype is torch.bfloat16 else torch.ones_like(bits(b), dtype=torch.bool)
        assert torch.equal(bits(a)[known], bits(b)[known])
        assert b.dtype is not torch.bfloat16 or a[~known].isnan().all()


TYPES = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 2e-3)])


@pytest.mark.parametrize("place", [-1, 5])
def test_a_padding_row_is_not_written(kernels: Interpreted, place: int) -> None:
    """Its place is -1. What is in front of the cache belongs to others."""
    memory = torch.zeros(4, 1, 16, SPEC.kv_heads, SPEC.key_dim)
    layer = KVLayer(SPEC, keys=memory[3:], values=memory[1:2])
    k, v = torch.ones(2, 2, SPEC.kv_heads, SPEC.key_dim)
    _, (changed, *_) = kernels.call(
        "attention.write", "write", layer, k, v, torch.tensor([2, place]), pdl=False
    )
    whole = changed.keys.as_strided(memory.shape, memory.stride(), 0)
    assert whole.sum() == 2 * (1 + (place >= 0)) * k[0].numel() and not whole[::2].any()


@pytest.mark.parametrize(
    ("scheme", "dtype", "tolerance"),
    [
        ("int8", torch.float32, 1e-5),
        ("fp8", torch.float16, 2e-3),
        *soak(("fp8", torch.float32, 1e-5), ("int8", torch.float16, 2e-3)),
    ],
)
@pytest.mark.parametrize(
    ("rows", "programs"),
    [([(1, 70), (1, 3)], 1), ([(1, 70), (1, 3)], 300), ([(1, 40), (5, 60)], 300), ([(20, 55)], 1)],
    ids=["decode", "cut", "verify", "prompt"],
)  # fmt: skip
def test_attention_reads_what_it_packed(
    kernels: Interpreted,
    rows: list[tuple[int, int]],
    programs: int,
    dtype: torch.dtype,
    tolerance: float,
    scheme: KvSchemeName,
) -> None:
    case = packed(make_case(SPEC, rows, shuffled=True, dtype=dtype, seed=3), scheme)
    got, *cache = kernels.attend(case.copy(), programs=programs)
    torch.testing.assert_close(got.float(), exact(case), rtol=tolerance, atol=tolerance)
    same(KVLayer(SPEC, cache[0], cache[1], None, *cache[2:]), case.layer)


def exact(case: Case) -> Tensor:
    """The oracle: the torch backend in float32, which writes the case's own cache."""
    return run_torch(replace(case, q=case.q.float()))


@PACKED
@pytest.mark.parametrize(
    ("spec", "block_size"),
    [
        (LayerSpec(heads=3, kv_heads=3, key_dim=40, value_dim=24, scale=0.2, softcap=2.0), 16),
        (LayerSpec(heads=32, kv_heads=2, key_dim=64, value_dim=64, scale=0.1), 32),
        (LayerSpec(heads=2, kv_heads=2, key_dim=15, value_dim=16, scale=0.2), 16),
    ],
    ids=["padded", "many heads", "odd"],
)
def test_any_shape(kernels: Interpreted, spec: LayerSpec, block_size: int, scheme: KvSchemeName) -> None:
    rows = [(1, 33), (1, 7), (3, 45)]
    plain = make_case(
        spec, rows, block_size=block_size, sinks=spec.softcap is None, dtype=torch.float16, seed=5
    )
    case = packed(plain, scheme)
    got, *_ = kernels.attend(case.copy(), programs=8)
    torch.testing.assert_close(got.float(), exact(case), rtol=2e-3, atol=2e-3)


@PACKED
@pytest.mark.parametrize(("contexts", "rows", "cut"), [([90, 5], 4, True), ([9, 16, 2], 8, False)])
def test_work_lists_of_a_graph_give_the_same(
    kernels: Interpreted, contexts: list[int], rows: int, cut: bool, scheme: KvSchemeName
) -> None:
    case = packed(make_case(SPEC, [(1, context) for context in contexts], dtype=torch.float16), scheme)
    found, was_cut = kernels.standing(case.copy(), rows)
    torch.testing.assert_close(found.float(), exact(case), rtol=2e-3, atol=2e-3)
    assert was_cut is cut


@PACKED_ALIKE
def test_work_lists_with_pieces_of_prompts_give_the_same(kernels: Interpreted, scheme: KvSchemeName) -> None:
    case = packed(make_case(SPEC, [(1, 90), (1, 5), (9, 70), (3, 3)], dtype=torch.float16), scheme)
    found, _ = kernels.standing(case.copy(), 24)
    torch.testing.assert_close(found.float(), exact(case), rtol=2e-3, atol=2e-3)


@PACKED
@pytest.mark.parametrize("up", [-80, 80])
def test_numbers_beyond_float16_are_read(kernels: Interpreted, up: int, scheme: KvSchemeName) -> None:
    """Queries and keys whose product only fits together, and values of very different sizes."""
    case = make_case(SPEC, [(1, 70), (1, 40), (4, 20)], dtype=torch.bfloat16, seed=1)
    for cells in (case.layer.keys, case.k):
        cells *= 2.0**-up
    case.q.mul_(2.0**up)
    for values in (case.layer.values, case.v):
        values *= 2.0**up
        values[::2] *= 2.0**-20
    case = packed(case, scheme)
    got, *_ = kernels.attend(case.copy(), programs=8)
    expected = exact(case).double()
    worst = (got.double() - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
    assert worst.max() < 2**-8


@PACKED
def test_gathering_unpacks(kernels: Interpreted, scheme: KvSchemeName) -> None:
    spec = LayerSpec(heads=6, kv_heads=3, key_dim=64, value_dim=32, scale=0.125)
    case = packed(make_case(spec, [(1, 20), (9, 110), (35, 35)], dtype=torch.float16, shuffled=True), scheme)
    got, *_ = kernels.attend(case.copy(), gathered=True, keys=16, programs=8)
    torch.testing.assert_close(got.float(), exact(case), rtol=2**-8, atol=2**-8)


@PACKED
@TYPES
def test_nan_in_a_token_stays_in_its_row(
    kernels: Interpreted, dtype: torch.dtype, tolerance: float, scheme: KvSchemeName
) -> None:
    case = packed(make_case(SPEC, [(1, 30), (1, 20), (6, 6)], dtype=dtype), scheme)
    case.k[1] = case.v[1] = torch.nan
    case.k[2] = case.v[0] = 0.0
    got, _, _, key_scales, _ = kernels.attend(case.copy())
    assert got[1].isnan().all() and got[[0, 2, 3, 4, 5, 6, 7]].isfinite().all()
    assert key_scales.flatten(0, 1)[case.batch.places[1]].isnan().all()
    expected = exact(case)[[0, 2, 3, 4, 5, 6, 7]]
    torch.testing.assert_close(got.float()[[0, 2, 3, 4, 5, 6, 7]], expected, rtol=tolerance, atol=tolerance)


@PACKED
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_rope_writes_packed_cells(kernels: Interpreted, scheme: KvSchemeName, dtype: torch.dtype) -> None:
    """The cells equal what the torch backend makes of the same keys and values."""
    spec = LayerSpec(heads=3, kv_heads=2, key_dim=24, value_dim=24, scale=1.0)
    parts = torch.randn(1, 5, 7 * 24, generator=torch.Generator().manual_seed(0)).to(dtype)
    parts[0, 3, 5 * 24 + 3] = torch.nan
    rope = rope_table(RopeSpec(theta=10000.0), 24, 50, dtype)
    places, positions = torch.tensor([3, -1, 40, 0, 17]), torch.tensor([17, 0, 49, 3, 0])
    plain = KVLayer(spec, *(torch.zeros(3, 16, 2, 24, dtype=dtype) for _ in range(2)))
    expected = oracles.turn(parts, plain, None, 0.0, rope, positions, places, dtype=dtype)
    empty = KVLayer(spec, *(torch.zeros(3, 16, 2, 24, dtype=dtype) for _ in range(2)))
    mine = packed(Case(None, empty, *[None] * 3), scheme).layer  # type: ignore[arg-type]
    found, (_, mine, *_) = kernels.call(
        "kv.rope_and_cache", "rope_and_cache", parts, mine, None, 0.0, rope, positions, places, dtype=dtype
    )
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)
    keys, values = (pack(each.flatten(0, 1), mine.keys.dtype) for each in (plain.keys, plain.values))
    there = places[places >= 0]
    for (numbers, scales), cells, by in (
        (keys, mine.keys, mine.key_scales), (values, mine.values, mine.value_scales)
    ):  # fmt: skip
        assert by is not None and by.isnan().any() == scales.isnan().any()
        torch.testing.assert_close(by.flatten(0, 1)[there], scales[there], rtol=1e-2, atol=0, equal_nan=True)
        known = ~scales[there].isnan()
        off = cells.flatten(0, 1)[there][known].float() - numbers[there][known].float()
        assert (off.abs() <= (1 if scheme == "int8" else 32)).all()
        assert (bits(cells).flatten(0, 1).float().abs().sum((1, 2)) > 0).sum() == len(there)


@pytest.mark.parametrize(
    ("changes", "programs", "scheme", "dtype"),
    [
        ({"chunk": 20}, 300, "fp8", torch.float16),
        ({"slopes": SLOPES[: SPEC.heads]}, 8, "int8", torch.float16),
        *soak(
            ({"chunk": 7}, 8, "int8", torch.float32),
            ({"chunk": 20}, 8, "int8", torch.float16),
            ({"slopes": SLOPES[: SPEC.heads]}, 300, "fp8", torch.float32),
        ),
    ],
)
def test_chunks_and_slopes(
    kernels: Interpreted, changes: dict[str, Any], programs: int, scheme: KvSchemeName, dtype: torch.dtype
) -> None:
    case = make_case(replace(SPEC, **changes), [(1, 50), (1, 21), (30, 45), (4, 4)], dtype=dtype)
    case = packed(case, scheme)
    got, *_ = kernels.attend(case.copy(), keys=16, programs=programs)
    torch.testing.assert_close(got.float(), exact(case), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("window", "kept", "programs", "scheme", "dtype"),
    [
        (8, 4, 1, "none", torch.float32), (20, 17, 8, "fp8", torch.float16),
        (3, 1, 300, "int8", torch.float32),
        *soak(
            (20, 17, 300, "none", torch.float32), (20, 17, 8, "int8", torch.float32),
            (60, 4, 8, "fp8", torch.float32), (3, 1, 300, "int8", torch.float16),
            (60, 4, 8, "int8", torch.float16),
        ),
    ],
)  # fmt: skip
def test_the_sinks_stay_visible(
    kernels: Interpreted, window: int, kept: int, programs: int, scheme: str, dtype: torch.dtype
) -> None:
    spec = LayerSpec(heads=4, kv_heads=2, key_dim=16, value_dim=16, scale=0.3, window=window, kept=kept)
    rows = [(1, 50), (1, 5), (1, 21), (30, 45), (4, 4)]
    case = make_case(spec, rows, shuffled=True, sinks=window == 20, dtype=dtype, seed=window)
    if scheme == "none":
        expected = oracle.attend(*(each for each in (case.q, case.k, case.v)), case.copy().layer, case.batch)
    else:
        case = packed(case, scheme)  # type: ignore[arg-type]
        expected = exact(case.copy()).double()
    got, *_ = kernels.attend(case, keys=16, programs=programs)
    tolerance = 1e-5 if dtype is torch.float32 else 2e-3
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)
