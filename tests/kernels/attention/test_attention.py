"""The Triton backend in Triton's interpreter, against a plain implementation and the torch backend."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.api.cache_spec import LayerSpec
from engine.attention.torch_backend import TorchAttention
from tests.attention import oracle
from tests.attention.cases import Case, make_case
from tests.attention.test_torch_backend import SLOPES
from tests.cases import soak
from tests.kernels.cases import make_long_case
from tests.kernels.interpreted import Interpreted

pytest.importorskip("triton", reason="no Triton here")

CPU = torch.device("cpu")
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2**-9}


@st.composite
def layers(draw: st.DrawFn) -> LayerSpec:
    kv_heads = draw(st.sampled_from((1, 2)))
    key_dim = draw(st.sampled_from((8, 64, 80, 96, 128, 256)))
    chunk = draw(st.none() | st.integers(1, 60))
    heads = kv_heads * draw(st.sampled_from((1, 2, 3, 7, 16)))
    slopes = draw(st.sampled_from(((), SLOPES[:heads])))
    return LayerSpec(
        heads=heads,
        kv_heads=kv_heads,
        key_dim=key_dim,
        value_dim=draw(st.sampled_from((key_dim, key_dim, 40))),
        scale=key_dim**-0.5,
        window=None if chunk else draw(st.none() | st.integers(1, 60)),
        chunk=chunk,
        kept=0 if chunk else draw(st.sampled_from((0, 0, 3, 20))),
        softcap=None if slopes else draw(st.none() | st.sampled_from((1.0, 20.0))),
        slopes=slopes,
    )


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Rows of a step as (tokens, context): rows of one token first, then chunks."""
    singles = draw(st.lists(st.integers(1, 100), max_size=3))
    chunks = draw(st.lists(st.tuples(st.integers(2, 18), st.integers(0, 60)), max_size=2))
    return [(1, context) for context in singles] + [(new, old + new) for new, old in chunks] or [(1, 1)]


@settings(max_examples=8)
@given(
    spec=layers(),
    rows=steps(),
    block_size=st.sampled_from((16, 32, 256)),
    sinks=st.booleans(),
    dtype=st.sampled_from(list(TOLERANCES)),
    keys=st.sampled_from((16, 32, 64)),
    programs=st.sampled_from((1, 8, 300)),
    ahead=st.booleans(),
    seed=st.integers(0, 99),
)
def test_equals_the_plain_implementation(
    kernels: Interpreted,
    spec: LayerSpec,
    rows: list[tuple[int, int]],
    block_size: int,
    sinks: bool,
    dtype: torch.dtype,
    keys: int,
    programs: int,
    ahead: bool,
    seed: int,
) -> None:
    case = make_case(spec, rows, block_size=block_size, shuffled=True, sinks=sinks, dtype=dtype, seed=seed)
    ahead = ahead and spec.reach is None and not spec.slopes
    got, *cache = kernels.attend(case, keys=keys, programs=programs, ahead=ahead)
    expected = oracle.attend(case.q, case.k, case.v, case.layer, case.batch)  # writes the case's own cache
    assert got.dtype == dtype
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)
    for mine, theirs in zip(cache, (case.layer.keys, case.layer.values), strict=True):
        assert torch.equal(mine.nan_to_num(7.0), theirs.nan_to_num(7.0))


@pytest.mark.parametrize("block_size", [16, *soak(64)])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_gathered_contexts_give_the_same(
    kernels: Interpreted, block_size: int, softcap: float | None
) -> None:
    """One of the rows is split, after rows of one token. Unwritten cells hold NaN."""
    spec = LayerSpec(heads=6, kv_heads=3, key_dim=64, value_dim=32, scale=0.125, softcap=softcap)
    rows = [(1, 20), (9, 110), (35, 35), (2, 33)]
    case = make_long_case(
        spec, rows, block_size=block_size, dtype=torch.float16, device=CPU, sinks=softcap is None
    )
    expected = oracle.attend(
        *(each.clone() for each in (case.q, case.k, case.v)), case.copy().layer, case.batch
    )
    for keys, programs in ((16, 8), (64, 300)):
        got = kernels.attend(case.copy(), gathered=True, keys=keys, programs=programs)[0]
        torch.testing.assert_close(got.double(), expected, rtol=2**-9, atol=2**-9)


@pytest.mark.parametrize("rows", [[(1, 160), (1, 17), (1, 1)], [(1, 50), (3, 110), (11, 40)]])
@pytest.mark.parametrize("window", [*soak(None), 90])
def test_equals_the_torch_backend(
    kernels: Interpreted, rows: list[tuple[int, int]], window: int | None
) -> None:
    """With the default tiles, strided keys, and tensors of transposed heads."""
    spec = LayerSpec(heads=4, kv_heads=2, key_dim=64, value_dim=64, scale=0.125, window=window)
    case = make_long_case(spec, rows, block_size=16, dtype=torch.float32, device=CPU)
    bridged = Case(case.batch, case.layer, *map(transposed, (case.q, case.k, case.v)))
    expected = run_torch(case.copy())
    for each in (case, bridged):
        torch.testing.assert_close(kernels.attend(each.copy())[0], expected, rtol=1e-5, atol=1e-6)


def run_torch(case: Case) -> Tensor:
    backend = TorchAttention()
    return backend.attend(case.q, case.k, case.v, case.layer, backend.prepare(case.batch))


def transposed(tensor: Tensor) -> Tensor:
    """Return the same numbers in transformers' layout: the tokens of a head are adjacent."""
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)


@pytest.mark.parametrize(
    ("contexts", "rows", "limit", "cut"),
    [
        ([90], 1, {}, True),
        ([30, 5, 99], 4, {}, True),
        ([9, 16, 2], 8, {}, False),
        ([99], 2, {"window": 12}, False),
        ([99, 40], 2, {"chunk": 40}, True),
        ([99, 40], 2, {"slopes": SLOPES[:4]}, True),
    ],
)
def test_work_lists_of_a_graph_give_the_same(
    kernels: Interpreted, contexts: list[int], rows: int, limit: dict[str, Any], cut: bool
) -> None:
    spec = LayerSpec(heads=4, kv_heads=2, key_dim=64, value_dim=64, scale=0.125, **limit)
    one_each = [(1, context) for context in contexts]
    case = make_long_case(spec, one_each, block_size=16, dtype=torch.float32, device=CPU)
    found, was_cut = kernels.standing(case.copy(), rows)
    torch.testing.assert_close(found, run_torch(case), rtol=1e-5, atol=1e-6)
    assert was_cut is cut


@pytest.mark.parametrize(
    ("rows", "tokens", "limit", "ahead", "cut"),
    [
        ([(17, 90)], 32, {}, True, False),
        ([(1, 99), (1, 7), (3, 110), (11, 40), (2, 2)], 24, {}, False, True),
        ([(1, 16), (9, 30)], 10, {"window": 12}, False, False),
        ([(1, 60), (13, 70)], 16, {"window": 12, "kept": 3}, False, False),
        ([(1, 60), (13, 70)], 16, {"chunk": 12}, False, False),
        ([(1, 60), (13, 70)], 16, {"slopes": SLOPES[:4]}, False, True),
    ],
)
def test_work_lists_with_pieces_of_prompts_give_the_same(
    kernels: Interpreted,
    rows: list[tuple[int, int]],
    tokens: int,
    limit: dict[str, Any],
    ahead: bool,
    cut: bool,
) -> None:
    """Contexts of pieces may be split, and no program may read beyond a table for an item that is empty."""
    spec = LayerSpec(heads=4, kv_heads=2, key_dim=64, value_dim=64, scale=0.125, **limit)
    case = make_long_case(spec, rows, block_size=16, dtype=torch.float32, device=CPU)
    found, was_cut = kernels.standing(case.copy(), tokens, ahead=ahead)
    torch.testing.assert_close(found, run_torch(case), rtol=1e-5, atol=1e-6)
    assert was_cut is cut


@given(
    lengths=st.lists(st.integers(2, 90), min_size=1, max_size=20),
    singles=st.integers(0, 40),
    group=st.sampled_from((1, 4, 7, 40)),
    old=st.integers(0, 5000),
    rows=st.sampled_from((None, 8, 32)),
)
def test_the_lists_of_a_graph_have_room(
    lengths: list[int], singles: int, group: int, old: int, rows: int | None
) -> None:
    """Each query sees the keys up to its own once, whatever pieces there are, if the graph holds them."""
    from engine.attention.graph_work import CELLS, GraphWork
    from engine.kernels.triton.attention.work_plan import ITEM

    spec = LayerSpec(heads=2 * group, kv_heads=2, key_dim=64, value_dim=64, scale=0.125)
    counts = np.array([1] * singles + lengths)
    contexts = (counts + old).astype(np.int32)
    tokens = int(counts.sum())
    work = GraphWork([spec], tokens, torch.float16, CPU, pieces=True, rows=rows)
    longer = counts > 1
    if not work.holds(counts, contexts):
        most = len(lengths) > 16 or singles > (rows or tokens)
        assert most or counts[longer] @ contexts[longer] > CELLS
        return
    numbers = np.full(work.numbers, 99, np.int32)
    cut = work.fill(numbers, np.arange(len(counts)), contexts, counts)
    given = torch.from_numpy(numbers), torch.empty(0), torch.empty(0), torch.empty(0)
    metadata = work.metadata(*given, cut=cut, decodes=singles > 0)
    read = np.zeros(tokens, np.int64)
    for launch in metadata.work[spec]:
        for _, token, queries, position, begin, end, *_ in launch.items.view(-1, ITEM).tolist():
            seen = np.minimum(end, position + 1 + np.arange(queries)) - begin
            read[token : token + queries] += np.maximum(0, seen)
    own = [np.arange(end - count, end) + 1 for count, end in zip(counts, contexts, strict=True)]
    assert np.array_equal(read, np.concatenate(own))


def test_a_large_graph_holds_many_prompts_and_no_programs_for_more_decodes_than_rows() -> None:
    from engine.attention.graph_work import GraphWork

    spec = LayerSpec(heads=16, kv_heads=8, key_dim=128, value_dim=128, scale=0.1)
    work = GraphWork([spec], 4096, torch.float16, CPU, pieces=True, rows=256)
    for decodes, prompts, held in ((256, 64, True), (257, 64, False), (256, 65, False)):
        counts = np.array([1] * decodes + [60] * prompts)
        assert work.holds(counts, counts) is held
    given = torch.empty(work.numbers), torch.empty(0), torch.empty(0), torch.empty(0)
    singles, _ = work.metadata(*given, cut=True, decodes=True).work[spec]
    assert 256 <= len(singles.items) < 300


def test_nan_in_a_token_stays_in_its_row(kernels: Interpreted) -> None:
    spec = LayerSpec(heads=4, kv_heads=2, key_dim=16, value_dim=16, scale=0.3)
    case = make_case(spec, [(1, 30), (1, 20), (6, 6)])
    case.k[1] = case.v[1] = torch.nan
    got, *_ = kernels.attend(case)
    assert got[1].isnan().all()
    assert got[[0, 2, 3, 4, 5, 6, 7]].isfinite().all()


def test_a_device_without_a_gpu_is_refused() -> None:
    from engine.attention.triton_backend import TritonAttention

    spec = LayerSpec(heads=4, kv_heads=2, key_dim=64, value_dim=64, scale=0.3)
    assert (
        TritonAttention.why_not(CPU, spec, torch.float32) == "it needs an NVIDIA GPU, and the device is cpu"
    )
