"""Attention summed up by block, in Triton's interpreter and on a GPU, against torch (block_scores.py)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.api.cache_spec import KvSchemeName, LayerSpec
from engine.attention.observers import Observers, by_block
from engine.attention.torch_backend import TorchAttention
from engine.execution.block_scores import received
from engine.kv.eviction import filled_blocks
from engine.kv.store import KVStore
from tests.attention.cases import Case, make_case
from tests.cases import soak
from tests.kernels import fours
from tests.kernels.attention.observed import summed
from tests.kernels.cases import make_long_case, packed
from tests.kernels.interpreted import Interpreted
from tests.kernels.steps.test_compiles import GIVEN, META, compiled

pytest.importorskip("triton", reason="no Triton here")

__all__ = ["compiled"]  # a fixture

Call = Callable[..., Any]
SPEC = LayerSpec(heads=6, kv_heads=2, key_dim=24, value_dim=8, scale=0.2)
WIDE = LayerSpec(heads=16, kv_heads=1, key_dim=64, value_dim=8, scale=0.1, softcap=2.0)
HEADS_OF_256 = replace(GIVEN, key_dim=256, value_dim=256)
ROWS = [(1, 96), (1, 40), (1, 16), (40, 80), (33, 33)]  # a block ends in 0, 1, 2 or 3 of their tokens
BEFORE = 10.0  # what the layers before have added
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3}


def written(case: Case) -> Case:
    """The case with its own tokens in the cache."""
    layer = case.layer
    layer.keys.flatten(0, 1)[case.batch.places] = case.k
    layer.values.flatten(0, 1)[case.batch.places] = case.v
    return case


def oracle(case: Case, filled: np.ndarray) -> list[Tensor]:
    tables = case.batch.tables
    return [received(case.q[token], case.layer, tables[row, :count]) for token, row, count in filled.tolist()]


def check(call: Call, case: Case, blocks: int, *, spare: int = 2, **sizes: int) -> None:
    """`blocks`: room for each observer. `spare`: room for observers that this step does not have."""
    batch, size = case.batch, case.layer.block_size
    filled = filled_blocks(np.diff(batch.host_starts), batch.host_contexts, size)
    observers = Observers.of(filled, blocks, size, torch.device("cpu"))
    listed = torch.cat((observers.listed, torch.full((spare, 4), 99, dtype=torch.int32)))
    totals = torch.full((len(filled) + spare, observers.totals.shape[1]), BEFORE)
    _, (*_, (_, found)) = call(
        "attention.received", "receive", case.q, case.layer, batch.tables, Observers(listed, totals), **sizes
    )
    assert (found[len(filled) :] == BEFORE).all()
    expected, tolerance = oracle(case, filled), TOLERANCES[case.q.dtype]
    assert expected
    for mine, theirs in zip(by_block(found - BEFORE, size), expected, strict=False):
        torch.testing.assert_close(mine[: len(theirs)], theirs, rtol=tolerance, atol=tolerance)
        assert not mine[len(theirs) :].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("spec", "block_size", "sinks"), [(SPEC, 16, False), (WIDE, 16, True), *soak((SPEC, 64, True))]
)
def test_equals_torch(call: Call, spec: LayerSpec, block_size: int, sinks: bool, dtype: torch.dtype) -> None:
    rows = [(count, context * block_size // 16) for count, context in ROWS]
    case = make_case(spec, rows, block_size=block_size, shuffled=True, sinks=sinks, dtype=dtype)
    check(call, written(case), blocks=7)


@pytest.mark.parametrize(
    ("scheme", "dtype"),
    [("int8", torch.float16), ("fp8", torch.float16), *soak(("int8", torch.float32), ("fp8", torch.float32))],
)
def test_a_packed_cache(call: Call, scheme: KvSchemeName, dtype: torch.dtype) -> None:
    check(call, packed(written(make_case(SPEC, ROWS, shuffled=True, dtype=dtype)), scheme), blocks=6)


@pytest.mark.parametrize(("dtype", "block_size"), [(torch.float16, 16), (torch.float32, 32)])
def test_a_cache_in_four_bits(call: Call, dtype: torch.dtype, block_size: int) -> None:
    rows = [(1, 96), (1, 40), (33, 64)]
    case = fours.case_of(SPEC, rows, block_size=block_size, dtype=dtype)
    backend = TorchAttention()
    backend.attend(case.q, case.k, case.v, case.layer, backend.prepare(case.batch))
    check(call, case, blocks=6)


@pytest.mark.parametrize("sizes", [{"room": 100}, {"share": 16}], ids=str)
def test_many_observers_and_long_contexts_take_turns(call: Call, sizes: dict[str, int]) -> None:
    """Two observers at once, or two groups of 8 heads."""
    check(call, written(make_case(SPEC, ROWS, shuffled=True)), blocks=7, **sizes)


@pytest.mark.cuda
@pytest.mark.parametrize("scheme", ["none", "int8", "fp8"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("spec", [GIVEN, HEADS_OF_256], ids=["128", "256"])
def test_long_contexts_on_a_gpu(spec: LayerSpec, dtype: torch.dtype, scheme: KvSchemeName) -> None:
    from engine.kernels.triton.attention.received import receive

    rows, device = [(1, 4096)] * 3 + [(1, 1600), (300, 2080)], torch.device("cuda")
    case = written(make_long_case(spec, rows, block_size=16, dtype=dtype, device=device))
    case = case if scheme == "none" else packed(case, scheme)
    filled = filled_blocks(np.diff(case.batch.host_starts), case.batch.host_contexts, 16)
    with torch.inference_mode():
        observers = Observers.of(filled, 256, 16, device)
        receive(case.q, case.layer, case.batch.tables, observers)
        for mine, theirs in zip(observers.totals, oracle(case, filled), strict=True):
            torch.testing.assert_close(mine[: len(theirs)], theirs, rtol=2e-3, atol=1e-5)


def test_queries_may_be_strided_and_no_block_be_filled(call: Call) -> None:
    case = written(make_case(SPEC, [(1, 32), (16, 48)], shuffled=True))
    qk = torch.cat((case.q, case.k), 1)
    check(call, replace(case, q=qk[:, : SPEC.heads]), blocks=3)
    idle = written(make_case(SPEC, [(1, 33), (14, 46)]))
    totals = torch.full((3, 3), BEFORE)
    listed = torch.zeros(4, 4, dtype=torch.int32)
    _, (*_, (_, found)) = call(
        "attention.received", "receive", idle.q, idle.layer, idle.batch.tables, Observers(listed, totals)
    )
    assert (found == BEFORE).all()


def test_filled_blocks_are_found_row_by_row() -> None:
    found = filled_blocks(np.array([1, 1, 20, 40]), np.array([16, 17, 35, 40]), 16)
    # Row 0 fills its first block; row 2 has tokens 15 to 34, and row 3 has 0 to 39.
    assert found.tolist() == [[0, 0, 1], [2, 2, 1], [18, 2, 2], [37, 3, 1], [53, 3, 2]]


@pytest.mark.parametrize(
    ("rows", "kv"),
    [
        ([(1, 48), (1, 17)], "none"),
        *soak(
            ([(1, 48), (20, 70), (7, 39)], "none"),
            ([(1, 96), (1, 33), (1, 64)], "fp8"),
            ([(1, 48), (20, 70)], "int8"),
            ([(1, 48), (1, 50), (20, 70)], "int4"),
        ),
    ],
)
def test_steps_sum_it_up_over_layers(
    kernels: Interpreted, rows: list[tuple[int, int]], kv: KvSchemeName
) -> None:
    same(*kernels.run(summed, rows, kv))


@pytest.mark.cuda
@pytest.mark.parametrize("kv", ["none", "int8", "fp8", "int4"])
@pytest.mark.parametrize("rows", [[(1, 96), (1, 33), (1, 64)], [(1, 48), (20, 70), (7, 39)]])
def test_steps_sum_it_up_on_a_gpu(rows: list[tuple[int, int]], kv: KvSchemeName) -> None:
    """A number whose rounding differs may be stored as another one in a packed cache."""
    same(*summed(rows, kv, "cuda"), tolerance=1e-3 if kv == "none" else 2e-2)


def same(expected: list[Tensor], *others: list[Tensor], tolerance: float = 1e-3) -> None:
    assert expected
    for found in others:
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("spec", "kv", "dtype"),
    [
        (GIVEN, "none", torch.bfloat16), (GIVEN, "int4", torch.bfloat16),
        *soak(
            (GIVEN, "none", torch.float32), (GIVEN, "int4", torch.float32), (GIVEN, "fp8", torch.bfloat16),
            (SPEC, "int8", torch.float16), (HEADS_OF_256, "none", torch.bfloat16),
            (HEADS_OF_256, "none", torch.float32), (HEADS_OF_256, "int4", torch.bfloat16),
        ),
    ],
)  # fmt: skip
def test_kernels_compile(
    compiled: dict[str, int], spec: LayerSpec, kv: KvSchemeName, dtype: torch.dtype
) -> None:
    """Without a GPU; see test_compiles.py."""
    from engine.kernels.triton.attention.received import receive

    with META, torch.inference_mode():
        store = KVStore((spec,), blocks=8, block_size=16, host_blocks=0, dtype=dtype, device=META, scheme=kv)
        q = torch.empty(4, spec.heads, spec.key_dim, dtype=dtype)
        observers = Observers(torch.empty(5, 4, dtype=torch.int32), torch.empty(4, 64))
        receive(q, store.layers[0], torch.empty(4, 64, dtype=torch.int32), observers)
    assert compiled.keys() == {"_sum_weights", "_add_shares"}
