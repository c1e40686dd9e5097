"""Attention over cached latents: absorbed and expanded, against keys and values that are written out."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.api.cache_spec import KV_SCHEMES, KvSchemeName, LayerSpec
from engine.api.errors import BadInput
from engine.attention import torch_backend
from engine.attention.base import KVLayer, LatentProjections, attending
from engine.attention.registry import choose, why_not
from engine.attention.torch_backend import TorchAttention
from engine.kv.store import KVStore
from tests.attention import oracle
from tests.attention.cases import Case, make_batch, make_case
from tests.attention.test_torch_backend import steps

HEADS, RANK, UNROTATED, ROTATED, VALUE = 3, 16, 6, 4, 5
SPEC = LayerSpec(heads=HEADS, kv_heads=1, key_dim=RANK + ROTATED, value_dim=RANK, scale=0.3, latent=True)
NBYTES = (RANK + ROTATED) * 4  # of a token in a layer
FEW, MANY = 8, 9  # queries that do not need their context expanded, and that do


def projections(dtype: torch.dtype = torch.float32) -> LatentProjections:
    rng = torch.Generator().manual_seed(5)
    weight = torch.randn(HEADS, UNROTATED + VALUE, RANK, generator=rng) * RANK**-0.5
    return LatentProjections(weight.to(dtype), UNROTATED)


def latent_case(rows: list[tuple[int, int]], spec: LayerSpec = SPEC, **changes: bool) -> Case:
    case = make_case(spec, rows, **changes)
    rng = torch.Generator().manual_seed(6)
    q = torch.randn(len(case.q), HEADS, UNROTATED + ROTATED, generator=rng)
    return replace(case, q=q, layer=KVLayer(spec, case.layer.keys, case.layer.keys[..., :RANK]))


def copied(case: Case) -> Case:
    keys = case.layer.keys.clone()
    return replace(case, layer=KVLayer(case.layer.spec, keys, keys[..., :RANK]))


def run(case: Case) -> Tensor:
    attend = attending(TorchAttention(), [case.layer], case.batch)
    return attend(0, case.q, case.k, projections())


def expected(case: Case) -> Tensor:
    """Plain attention over each head's own keys and values."""
    up, blocks = projections(), case.layer.keys.shape[:2]
    keys, values = up.expanded(case.layer.keys.flatten(0, 1))
    spec = replace(
        case.layer.spec, kv_heads=HEADS, key_dim=UNROTATED + ROTATED, value_dim=VALUE, latent=False
    )
    layer = KVLayer(spec, keys.unflatten(0, blocks), values.clone().unflatten(0, blocks))
    return oracle.attend(case.q, *up.expanded(case.k), layer, case.batch)


def test_the_number_of_queries_decides_what_is_cheaper() -> None:
    up = projections()
    assert (up.rank, up.value) == (RANK, VALUE)
    assert not up.expands(FEW) and up.expands(MANY)
    wide = LatentProjections(torch.empty(1, 2 * RANK, RANK), RANK)
    assert not wide.expands(10**9)  # keys and values as wide as two latents never pay


@pytest.mark.parametrize(("window", "kept"), [(None, 0), (7, 0), (7, 3)])
def test_equals_keys_and_values_of_each_head(window: int | None, kept: int) -> None:
    rows = [(1, 1), (1, 40), (FEW, 21), (MANY, MANY), (20, 33)]
    case = latent_case(rows, replace(SPEC, window=window, kept=kept), shuffled=True)
    wanted, found = expected(copied(case)), run(case)
    assert found.shape == (len(case.q), HEADS, VALUE)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)


def test_heads_are_expanded_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    case = latent_case([(12, 30)])
    whole = run(copied(case))
    monkeypatch.setattr(torch_backend, "EXPANDED", 2 * 30 * (UNROTATED + ROTATED + VALUE))
    torch.testing.assert_close(run(copied(case)), whole)


def test_both_ways_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    case = latent_case([(20, 45)])
    found = []
    for expands in (False, True):
        monkeypatch.setattr(LatentProjections, "expands", lambda self, queries, chosen=expands: chosen)
        found.append(run(copied(case)))
    assert not torch.equal(*found)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@given(rows=steps(), shuffled=st.booleans())
def test_other_rows_change_no_bit(rows: list[tuple[int, int]], shuffled: bool) -> None:
    case = latent_case(rows, shuffled=shuffled)
    together, starts = run(copied(case)), case.batch.starts.tolist()
    for row, (count, context) in enumerate(rows):
        mine = slice(starts[row], starts[row + 1])
        table = case.batch.host_tables[row, : -(-context // 16)].tolist()
        alone = replace(copied(case), batch=make_batch([(count, context)], [table], 16))
        assert torch.equal(run(replace(alone, q=case.q[mine], k=case.k[mine])), together[mine])


def store(blocks: int, scheme: KvSchemeName = "none") -> KVStore:
    given: dict[str, Any] = {"block_size": 16, "dtype": torch.float32, "device": torch.device("cpu")}
    return KVStore([SPEC, SPEC], blocks=blocks, host_blocks=2, scheme=scheme, **given)


def test_the_cache_holds_each_latent_once() -> None:
    made = store(4)
    layer = made.layers[1]
    assert made.nbytes == 4 * made.block_bytes([SPEC] * 2, 16, made.dtype) == 2 * 4 * 16 * NBYTES
    assert [tensor.shape for tensor in layer.tensors()] == [(4, 16, 1, RANK + ROTATED)]
    layer.keys.copy_(torch.arange(layer.keys.numel()).view_as(layer.keys))
    before = layer.keys[1].clone()
    made.swap_out([(1, 0)])
    made.resize(6, [1])
    made.copy([(1, 5)])
    made.swap_in([(0, 3)])
    for block in (1, 3, 5):
        assert torch.equal(layer.keys[block], before)
        assert torch.equal(layer.values[block], before[..., :RANK])
    assert layer.values.data_ptr() == layer.keys.data_ptr()


@pytest.mark.parametrize("scheme", KV_SCHEMES[1:])
def test_a_compressed_cache_of_latents_is_refused(scheme: KvSchemeName) -> None:
    reason = f"a cache of latents cannot be stored as {scheme}: one scale for a whole latent loses too much"
    with pytest.raises(BadInput, match=reason):
        store(4, scheme)
    with pytest.raises(BadInput, match=reason):
        choose("auto", torch.device("cpu"), [SPEC], torch.float32, scheme)


def test_a_backend_without_latents_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(TorchAttention, "attend_latents")
    problem = why_not("torch", torch.device("cpu"), [SPEC], torch.float32)
    assert problem == "it does not support latent attention"


def test_half_precision_is_computed_in_float32() -> None:
    """The result is that of the rounded numbers, rounded once."""
    case = latent_case([(1, 40), (FEW, 21), (20, 33)])
    rounded = [tensor.bfloat16() for tensor in (case.q, case.k)]
    keys = case.layer.keys.bfloat16()
    half = KVLayer(SPEC, keys, keys[..., :RANK])
    floats = keys.float()
    exact = KVLayer(SPEC, floats, floats[..., :RANK])
    up, backend = projections(torch.bfloat16), TorchAttention()
    metadata = backend.prepare(case.batch)
    found = backend.attend_latents(*rounded, up, half, metadata)
    q, k = (tensor.float() for tensor in rounded)
    wanted = backend.attend_latents(q, k, up.exact(), exact, metadata)
    assert found.dtype is torch.bfloat16
    assert torch.equal(found, wanted.bfloat16())
