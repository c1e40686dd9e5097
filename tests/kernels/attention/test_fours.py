"""A cache in four bits, in Triton's interpreter and on a GPU, against the torch backend."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.api.cache_spec import LayerSpec
from engine.attention.base import Batch
from engine.kv.store import KVLayer
from tests.attention.cases import Case, make_batch
from tests.attention.test_torch_backend import SLOPES
from tests.cases import soak
from tests.kernels.attention.test_attention import run_torch
from tests.kernels.conftest import moved
from tests.kernels.fours import case_of, fused_and_plain
from tests.kernels.interpreted import Interpreted

pytest.importorskip("triton", reason="no Triton here")

Call = Callable[..., Any]
SPEC = LayerSpec(heads=6, kv_heads=2, key_dim=24, value_dim=40, scale=0.2)
SHAPES = [
    (SPEC, 16),
    (LayerSpec(heads=4, kv_heads=1, key_dim=32, value_dim=32, scale=0.1, softcap=2.0), 32),
    (LayerSpec(heads=2, kv_heads=2, key_dim=64, value_dim=16, scale=0.1, window=20, kept=3), 16),
    (LayerSpec(heads=4, kv_heads=2, key_dim=32, value_dim=32, scale=0.1, chunk=20), 16),
    (LayerSpec(heads=4, kv_heads=2, key_dim=32, value_dim=32, scale=0.1, slopes=SLOPES[:4]), 16),
]


def same(mine: list[Tensor], theirs: KVLayer) -> None:
    """All bytes are those of the oracle. Its NaN may have other bits."""
    for a, b in zip(mine, theirs.tensors(), strict=True):
        if b.dtype in (torch.bfloat16, torch.float32):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        else:
            assert torch.equal(a, b)


STEPS = {
    "decode": [(1, 70), (1, 17), (1, 16), (1, 1)],
    "verify": [(1, 40), (5, 52), (3, 3)],
    "prompt": [(39, 55), (20, 20)],
}
F16, F32 = torch.float16, torch.float32


@pytest.mark.parametrize(
    ("shape", "dtype", "step"),
    [
        (0, F32, "decode"), (0, F32, "prompt"), (1, F16, "verify"), (3, F32, "verify"), (4, F16, "decode"),
        (4, F16, "prompt"),
        *soak((0, F32, "verify"), (1, F16, "decode"), (1, F16, "prompt"), (3, F32, "decode")),
        *soak((3, F32, "prompt"), (4, F16, "verify")),
        *soak(*((*kind, step) for kind in ((0, F16), (1, F32), (2, F32)) for step in STEPS)),
    ],
    ids=str,
)  # fmt: skip
def test_equals_the_torch_backend(kernels: Interpreted, shape: int, dtype: torch.dtype, step: str) -> None:
    spec, block_size = SHAPES[shape]
    case = case_of(spec, STEPS[step], block_size=block_size, dtype=dtype)
    got, *cache = kernels.attend(case.copy(), programs=8)
    expected = run_torch(replace(case, q=case.q.float()))
    tolerance = 1e-4 if dtype is torch.float32 else 4e-3
    torch.testing.assert_close(got.float(), expected, rtol=tolerance, atol=tolerance)
    same(cache, case.layer)


def test_gathering_unpacks(kernels: Interpreted) -> None:
    spec = LayerSpec(heads=6, kv_heads=3, key_dim=64, value_dim=32, scale=0.02)
    case = case_of(spec, [(1, 20), (9, 110), (35, 35)], dtype=torch.float16)
    got, *_ = kernels.attend(case.copy(), gathered=True, keys=16, programs=8)
    torch.testing.assert_close(got.float(), run_torch(replace(case, q=case.q.float())), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("rows", "tokens"), [([(1, 90), (1, 33), (1, 5)], 4), ([(1, 90), (1, 5), (20, 70), (7, 7)], 32)]
)
def test_work_lists_of_a_graph_give_the_same(
    kernels: Interpreted, rows: list[tuple[int, int]], tokens: int
) -> None:
    """Rows of a graph have slots, and there are more of them than requests. They may be pieces of prompts."""
    case = case_of(SPEC, rows, dtype=torch.float16)
    found, was_cut = kernels.standing(case.copy(), tokens)
    torch.testing.assert_close(
        found.float(), run_torch(replace(case, q=case.q.float())), rtol=4e-3, atol=4e-3
    )
    assert was_cut


def test_padding_rows_write_nothing(kernels: Interpreted) -> None:
    case = case_of(SPEC, [(1, 34)], dtype=torch.float32)
    before = [each.clone() for each in case.layer.tensors()]
    _, (layer, *_) = kernels.call(
        "attention.write_fours", "write_fours", case.layer, case.k, case.v, torch.tensor([-1]),
        case.batch.tables, torch.tensor([0]), slots=torch.tensor([99]),
    )  # fmt: skip
    for old, new in zip(before, layer.tensors(), strict=True):
        assert torch.equal(old.view(torch.uint8), new.view(torch.uint8))


class TestRowsThatContinueOneAnother:
    """Drafts, and short prompts in a graph: a row for each token. The order of programs must not matter."""

    rows = st.lists(st.tuples(st.integers(1, 7), st.integers(0, 40)), min_size=1, max_size=3)
    shapes = st.sampled_from(SHAPES[:2])

    @settings(max_examples=12)
    @given(rows=rows, last=st.sampled_from([(0, 0), (1, 16), (20, 14)]), shape=shapes)
    def test_give_the_bytes_of_one_row(
        self, call: Call, rows: list[tuple[int, int]], last: tuple[int, int], shape: Any
    ) -> None:
        case, apart = drafts(shape, [*rows, last] if last[0] else rows, split=len(rows))
        layer = written(call, case, apart, starts=apart.starts, contexts=apart.contexts)
        run_torch(case)
        same(layer, case.layer)

    @settings(max_examples=12)
    @given(rows=rows, shape=shapes, padding=st.integers(0, 2))
    def test_give_the_bytes_of_one_row_in_a_graph(
        self, call: Call, rows: list[tuple[int, int]], shape: Any, padding: int
    ) -> None:
        case, apart = drafts(shape, rows, split=len(rows))
        counts = torch.tensor([count for count, _ in rows])
        slots = torch.arange(len(rows)).flip(0).repeat_interleave(counts)
        batch = replace(
            apart, tables=case.batch.tables.flip(0), places=padded(apart.places, padding, with_=-1)
        )
        layer = written(
            call, case, batch, slots=padded(slots, padding, with_=99),
            contexts=padded(apart.contexts, padding, with_=0),
        )  # fmt: skip
        run_torch(case)
        same(layer, case.layer)


def drafts(shape: tuple[LayerSpec, int], rows: list[tuple[int, int]], split: int) -> tuple[Case, Batch]:
    """Rows as (tokens, tokens before them), and their batch with a row for each token of the first ones."""
    spec, block_size = shape
    rows = [(count, before + count) for count, before in rows]
    case = case_of(spec, rows, block_size=block_size, dtype=torch.float32)
    tables = case.batch.host_tables.tolist()
    apart = [
        ((1, context - count + at + 1), table)
        for (count, context), table in zip(rows[:split], tables, strict=False)
        for at in range(count)
    ]
    apart += zip(rows[split:], tables[split:], strict=True)
    return case, make_batch(*zip(*apart, strict=True), block_size)


def written(call: Call, case: Case, batch: Batch, **rows: Tensor) -> list[Tensor]:
    layer, more = case.copy().layer, len(batch.places) - len(case.k)
    k, v = (torch.cat((each, each.new_full((more, *each.shape[1:]), torch.nan))) for each in (case.k, case.v))
    args = layer, k, v, batch.places, batch.tables
    _, (layer, *_) = call("attention.write_fours", "write_fours", *args, **rows)
    return list(layer.tensors())


def padded(numbers: Tensor, count: int, *, with_: int) -> Tensor:
    return torch.cat((numbers, numbers.new_full((count,), with_)))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize(
    "rows", [[(1, 70), (1, 700), (1, 16)], [(1, 40), (5, 600), (3, 3)], [(700, 900), (400, 400)]],
    ids=["decode", "verify", "prompt"],
)  # fmt: skip
def test_on_a_gpu(rows: list[tuple[int, int]], dim: int, dtype: torch.dtype) -> None:
    from engine.attention.triton_backend import TritonAttention

    spec = LayerSpec(heads=16, kv_heads=4, key_dim=dim, value_dim=dim, scale=0.02)
    case = case_of(spec, rows, dtype=dtype)
    there: dict[str, Any] = {name: moved(getattr(case, name), "cuda") for name in ("layer", "q", "k", "v")}
    names = ("ids", "positions", "places", "starts", "contexts", "tables")
    batch = replace(case.batch, **{name: getattr(case.batch, name).cuda() for name in names})
    backend = TritonAttention()
    got = backend.attend(there["q"], there["k"], there["v"], there["layer"], backend.prepare(batch))
    expected = run_torch(replace(case, q=case.q.float())).double()
    same([each.cpu() for each in there["layer"].tensors()], case.layer)
    error = (got.cpu().double() - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
    assert error.max() < (1e-2 if dtype is torch.bfloat16 else 5e-3)


@pytest.mark.parametrize("rows", [[(1, 33)], [(1, 40), (1, 16), (5, 20)]], ids=["one row", "rows"])
def test_the_fused_forward_equals_the_decoder(kernels: Interpreted, rows: list[tuple[int, int]]) -> None:
    got, expected, *_ = kernels.run(fused_and_plain, rows)
    torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2)
