"""The torch backend against the plain implementation, and against itself among other rows."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.api.cache_spec import LayerSpec
from engine.attention import torch_backend
from engine.attention.torch_backend import TorchAttention
from tests.attention import oracle
from tests.attention.cases import Case, make_batch, make_case

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
SLOPES = tuple(1.5**-n for n in range(64))  # of heads, at most so many
DIMS = (8, 64, 80, 96, 128, 256)


def run(case: Case) -> Tensor:
    backend = TorchAttention()
    with torch.inference_mode():
        return backend.attend(case.q, case.k, case.v, case.layer, backend.prepare(case.batch))


@st.composite
def layers(draw: st.DrawFn) -> LayerSpec:
    kv_heads = draw(st.sampled_from((1, 2, 3, 4)))
    key_dim = draw(st.sampled_from(DIMS))
    chunk = draw(st.none() | st.integers(1, 40))
    heads = kv_heads * draw(st.sampled_from((1, 2, 3, 7, 16)))
    slopes = draw(st.sampled_from(((), SLOPES[:heads])))
    return LayerSpec(
        heads=heads,
        kv_heads=kv_heads,
        key_dim=key_dim,
        value_dim=draw(st.sampled_from((key_dim, 8, 64))),
        scale=key_dim**-0.5,
        window=None if chunk else draw(st.none() | st.integers(1, 40)),
        chunk=chunk,
        kept=0 if chunk else draw(st.sampled_from((0, 0, 4, 20))),
        softcap=None if slopes else draw(st.none() | st.sampled_from((1.0, 20.0))),
        slopes=slopes,
    )


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Rows of a step as (tokens, context): rows of one token first, then chunks."""
    singles = draw(st.lists(st.integers(1, 70), max_size=4))
    chunks = draw(st.lists(st.tuples(st.integers(2, 24), st.integers(0, 40)), max_size=2))
    rows = [(1, context) for context in singles] + [(count, before + count) for count, before in chunks]
    return rows or [(1, 1)]


@pytest.fixture(params=["as it is", "small pieces"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits for long contexts so that short ones reach them."""
    if request.param == "small pieces":
        monkeypatch.setattr(torch_backend, "PIECE", 16)
        monkeypatch.setattr(torch_backend, "TILES", (2, 5))
        monkeypatch.setattr(torch_backend, "SCORES", 200)


@pytest.mark.usefixtures("pieces")
@given(
    spec=layers(),
    rows=steps(),
    block_size=st.sampled_from((16, 32, 256)),
    shuffled=st.booleans(),
    sinks=st.booleans(),
    dtype=st.sampled_from(list(TOLERANCES)),
    seed=st.integers(0, 99),
)
def test_equals_the_plain_implementation(
    spec: LayerSpec,
    rows: list[tuple[int, int]],
    block_size: int,
    shuffled: bool,
    sinks: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    case = make_case(
        spec, rows, block_size=block_size, shuffled=shuffled, sinks=sinks, dtype=dtype, seed=seed
    )
    expected = case.copy()
    reference = oracle.attend(expected.q, expected.k, expected.v, expected.layer, expected.batch)
    got = run(case)
    assert got.dtype == dtype
    assert got.shape == reference.shape
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(got.double(), reference, rtol=tolerance, atol=max(1e-5, tolerance / 4))
    for mine, theirs in ((case.layer.keys, expected.layer.keys), (case.layer.values, expected.layer.values)):
        assert torch.equal(mine.nan_to_num(7.0), theirs.nan_to_num(7.0))  # written in the right cells only


@pytest.mark.usefixtures("pieces")
@given(
    spec=layers(),
    rows=steps(),
    shuffled=st.booleans(),
    sinks=st.booleans(),
    dtype=st.sampled_from(list(TOLERANCES)),
)
def test_other_rows_change_no_bit(
    spec: LayerSpec, rows: list[tuple[int, int]], shuffled: bool, sinks: bool, dtype: torch.dtype
) -> None:
    case = make_case(spec, rows, shuffled=shuffled, sinks=sinks, dtype=dtype)
    together = run(case.copy())
    starts = case.batch.starts.tolist()
    for row, (count, context) in enumerate(rows):
        mine = slice(starts[row], starts[row + 1])
        table = case.batch.host_tables[row, : -(-context // 16)].tolist()
        alone = replace(case.copy(), batch=make_batch([(count, context)], [table], 16))
        alone = replace(alone, q=case.q[mine], k=case.k[mine], v=case.v[mine])
        assert torch.equal(run(alone), together[mine])


@pytest.mark.usefixtures("pieces")
@given(spec=layers(), rows=steps(), seed=st.integers(0, 99))
def test_the_order_of_blocks_changes_no_bit(spec: LayerSpec, rows: list[tuple[int, int]], seed: int) -> None:
    assert torch.equal(
        run(make_case(spec, rows, seed=seed)), run(make_case(spec, rows, shuffled=True, seed=seed))
    )


@pytest.mark.parametrize("limit", [{}, {"window": 20}, {"chunk": 20}], ids=str)
@pytest.mark.parametrize("chunks", [[150], [1] * 150, [64, 64, 22], [1, 70, 5, 74]])
def test_chunks_equal_the_whole_prompt(chunks: list[int], limit: dict[str, int]) -> None:
    spec = LayerSpec(heads=6, kv_heads=2, key_dim=16, value_dim=16, scale=0.25, **limit)
    whole = make_case(spec, [(150, 150)])
    reference = run(whole)
    table = whole.batch.host_tables[0].tolist()
    pieced = make_case(spec, [(150, 150)])
    done = 0
    for count in chunks:
        mine = slice(done, done + count)
        batch = make_batch([(count, done + count)], [table], 16)
        part = run(Case(batch, pieced.layer, whole.q[mine], whole.k[mine], whole.v[mine]))
        torch.testing.assert_close(part, reference[mine], rtol=1e-5, atol=1e-5)
        done += count


def test_nan_in_a_token_stays_in_its_row() -> None:
    """NaN in one request's keys and values does not affect other requests."""
    spec = LayerSpec(heads=4, kv_heads=2, key_dim=8, value_dim=8, scale=0.3)
    case = make_case(spec, [(1, 30), (1, 20), (6, 6)])
    case.k[1] = case.v[1] = torch.nan
    got = run(case)
    assert got[1].isnan().all()
    assert got[[0, 2, 3, 4, 5, 6, 7]].isfinite().all()


def test_long_contexts_give_the_same_softmax() -> None:
    """More than one piece, with the real limits."""
    spec = LayerSpec(heads=2, kv_heads=1, key_dim=8, value_dim=8, scale=0.3)
    case = make_case(spec, [(1, 2 * torch_backend.PIECE + 100)], shuffled=True)
    expected = case.copy()
    reference = oracle.attend(expected.q, expected.k, expected.v, expected.layer, expected.batch)
    torch.testing.assert_close(run(case).double(), reference, rtol=1e-5, atol=1e-6)
