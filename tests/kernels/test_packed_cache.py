"""A compressed cache and a window that keeps the first tokens, under Triton's interpreter."""

import pytest
import torch

from engine.attention.packing import pack
from engine.cache.store import KVLayer, bits
from engine.config import KvSchemeName, LayerSpec, RopeSpec
from engine.models.rope import rope_table
from tests.attention import oracle
from tests.attention.cases import Case, make_case
from tests.kernels import oracles
from tests.kernels.cases import packed
from tests.kernels.interpreted import Interpreted
from tests.kernels.test_attention import run_torch

pytest.importorskip("triton", reason="no Triton here")

PACKED = pytest.mark.parametrize("scheme", ["int8", "fp8"])
SPEC = LayerSpec(heads=6, kv_heads=2, key_dim=24, value_dim=24, scale=0.2)


def same(mine: KVLayer, theirs: KVLayer) -> None:
    for a, b in zip(mine.tensors(), theirs.tensors(), strict=True):
        known = ~b.isnan() if b.dtype is torch.bfloat16 else torch.ones_like(bits(b), dtype=torch.bool)
        assert torch.equal(bits(a)[known], bits(b)[known])
        assert b.dtype is not torch.bfloat16 or a[~known].isnan().all()


@PACKED
@pytest.mark.parametrize(
    ("rows", "programs"),
    [([(1, 70), (1, 3)], 1), ([(1, 70), (1, 3)], 300), ([(1, 40), (5, 60)], 300), ([(20, 55)], 1)],
    ids=["decode", "cut", "verify", "prompt"],
)
def test_attention_reads_what_it_packed(
    kernels: Interpreted, rows: list[tuple[int, int]], programs: int, scheme: KvSchemeName
) -> None:
    case = packed(make_case(SPEC, rows, shuffled=True, seed=3), scheme)
    mine = case.copy()
    got, *cache = kernels.attend(mine, programs=programs)
    torch.testing.assert_close(got, run_torch(case), rtol=1e-5, atol=1e-5)
    same(KVLayer(SPEC, cache[0], cache[1], None, *cache[2:]), case.layer)


@PACKED
def test_a_token_without_number_stays_in_its_row(kernels: Interpreted, scheme: KvSchemeName) -> None:
    case = packed(make_case(SPEC, [(1, 30), (1, 20), (6, 6)]), scheme)
    case.k[1] = case.v[1] = torch.nan
    case.k[2] = case.v[0] = 0.0
    got, _, _, key_scales, _ = kernels.attend(case.copy())
    assert got[1].isnan().all() and got[[0, 2, 3, 4, 5, 6, 7]].isfinite().all()
    assert key_scales.flatten(0, 1)[case.batch.places[1]].isnan().all()


@PACKED
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_turning_packs(kernels: Interpreted, scheme: KvSchemeName, dtype: torch.dtype) -> None:
    """The cells are what the torch back end would have made of the same keys and values."""
    spec = LayerSpec(heads=3, kv_heads=2, key_dim=24, value_dim=24, scale=1.0)
    parts = torch.randn(1, 5, 7 * 24, generator=torch.Generator().manual_seed(0)).to(dtype)
    parts[0, 3, 5 * 24 + 3] = torch.nan
    rope = rope_table(RopeSpec(theta=10000.0), 24, 50, dtype)
    places, positions = torch.tensor([3, -1, 40, 0, 17]), torch.tensor([17, 0, 49, 3, 0])
    plain = KVLayer(spec, *(torch.zeros(3, 16, 2, 24, dtype=dtype) for _ in range(2)))
    wanted = oracles.turn(parts, plain, None, 0.0, rope, positions, places, dtype=dtype)
    empty = KVLayer(spec, *(torch.zeros(3, 16, 2, 24, dtype=dtype) for _ in range(2)))
    mine = packed(Case(None, empty, *[None] * 3), scheme).layer  # type: ignore[arg-type]
    found, (_, mine, *_) = kernels.call(
        "rotary", "turn", parts, mine, None, 0.0, rope, positions, places, dtype=dtype
    )
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)
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
    ("window", "kept", "programs", "scheme"),
    [(8, 4, 1, "none"), (20, 17, 300, "none"), (20, 17, 8, "int8"), (60, 4, 8, "fp8"), (3, 1, 300, "int8")],
)
def test_the_first_tokens_stay_in_sight(
    kernels: Interpreted, window: int, kept: int, programs: int, scheme: str
) -> None:
    spec = LayerSpec(heads=4, kv_heads=2, key_dim=16, value_dim=16, scale=0.3, window=window, kept=kept)
    rows = [(1, 50), (1, 5), (1, 21), (30, 45), (4, 4)]
    case = make_case(spec, rows, shuffled=True, sinks=window == 20, seed=window)
    if scheme == "none":
        wanted = oracle.attend(*(each for each in (case.q, case.k, case.v)), case.copy().layer, case.batch)
    else:
        case = packed(case, scheme)  # type: ignore[arg-type]
        wanted = run_torch(case.copy()).double()
    got, *_ = kernels.attend(case, keys=16, programs=programs)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)
