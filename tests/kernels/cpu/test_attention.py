"""The compiled attention against torch's, and the same token among others."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from engine.api.cache_spec import LayerSpec
from engine.attention.torch_backend import TorchAttention
from engine.kernels.cpu.compiled import attention, build
from tests.attention import oracle
from tests.attention.cases import Case, make_batch, make_case

Rows = list[tuple[int, int]]  # tokens of the step, tokens of the context


@pytest.fixture(autouse=True, params=build.ATTENTION, ids=lambda source: source.needed[-1])
def able(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernels for each kind of CPU, if this one can run them."""
    if (problem := build.why_not(request.param)) is not None:
        pytest.skip(problem)
    monkeypatch.setattr(build, "attention", lambda: request.param)
    attention._kernel.cache_clear()
    yield
    attention._kernel.cache_clear()


def case_of(
    rows: Rows,
    *,
    heads: tuple[int, int] = (6, 2),
    dims: tuple[int, int] = (64, 64),
    window: int | None = None,
    sinks: bool = False,
    **more: int,
) -> Case:
    sizes = {"heads": heads[0], "kv_heads": heads[1], "key_dim": dims[0], "value_dim": dims[1]}
    spec = LayerSpec(**sizes, scale=0.2, window=window)
    return make_case(spec, rows, sinks=sinks, dtype=torch.bfloat16, shuffled=True, **more)


def attended(case: Case) -> Tensor:
    backend, case = TorchAttention(), case.copy()
    assert attention.takes(case.layer, case.q)
    return backend.attend(case.q, case.k, case.v, case.layer, backend.prepare(case.batch))


@given(
    contexts=st.lists(st.integers(1, 40), min_size=1, max_size=2),
    count=st.sampled_from((1, 2, 20)),
    heads=st.sampled_from(((1, 1), (4, 4), (6, 2), (9, 1))),
    dims=st.sampled_from(((16, 16), (64, 64), (80, 80), (24, 112), (96, 128))),
    window=st.sampled_from((None, 1, 20)),
    sinks=st.booleans(),
    block_size=st.sampled_from((16, 64)),
    seed=st.integers(0, 99),
)
@example([129, 128], 9, (4, 1), (64, 64), None, False, 64, 0)
@example([145], 12, (6, 1), (16, 16), 140, True, 16, 0)
def test_equals_the_plain_implementation(
    contexts: list[int],
    count: int,
    heads: tuple[int, int],
    dims: tuple[int, int],
    window: int | None,
    sinks: bool,
    block_size: int,
    seed: int,
) -> None:
    rows = sorted((min(count, context), context) for context in contexts)
    given = {"heads": heads, "dims": dims, "window": window, "sinks": sinks}
    case = case_of(rows, block_size=block_size, seed=seed, **given)
    other = case.copy()
    exact = oracle.attend(other.q, other.k, other.v, other.layer, other.batch)
    torch.testing.assert_close(attended(case).double(), exact, rtol=2**-8, atol=2e-6)


def test_it_writes_as_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unwritten cells hold NaN."""
    case = case_of([(1, 40), (1, 7), (5, 21), (3, 3)])
    backend = TorchAttention()
    found, plain = [], []
    for each, takes in ((found, attention.takes), (plain, lambda layer, q: False)):
        monkeypatch.setattr(attention, "takes", takes)
        own = case.copy()
        out = backend.attend(own.q, own.k, own.v, own.layer, backend.prepare(own.batch))
        each += [out, own.layer.keys.nan_to_num(7.0), own.layer.values.nan_to_num(7.0)]
    assert torch.equal(found[1], plain[1]) and torch.equal(found[2], plain[2])
    torch.testing.assert_close(found[0], plain[0], rtol=2**-7, atol=1e-5)


@pytest.mark.parametrize("window", [None, 30])
def test_a_token_has_the_same_bits_in_a_prompt_in_its_pieces_and_alone(window: int | None) -> None:
    """So a prompt that is partly cached, or computed again after a preemption, has the same reply."""
    case = case_of([(150, 150)], window=window, sinks=True)
    whole, table = attended(case), case.batch.host_tables[0].tolist()
    for size in (1, 3, 8, 11, 64):
        parts, layer = [], case.copy().layer
        for at in range(0, 150, size):
            here = {name: getattr(case, name)[at : at + size] for name in "qkv"}
            batch = make_batch([(len(here["q"]), at + len(here["q"]))], [table], 16)
            backend = TorchAttention()
            parts.append(backend.attend(here["q"], here["k"], here["v"], layer, backend.prepare(batch)))
        assert torch.equal(torch.cat(parts), whole), size


@pytest.mark.parametrize("window", [None, 100])
def test_other_rows_blocks_and_threads_change_no_bit(window: int | None) -> None:
    rows = [(1, context) for context in (1, 16, 90, 200)]
    case = case_of([*rows, (4, 30)], window=window, sinks=True)
    whole, usual = attended(case), torch.get_num_threads()
    for n, (_, context) in enumerate(rows):
        table = case.batch.host_tables[n, : -(-context // 16)].tolist()
        here = {name: getattr(case, name)[n : n + 1] for name in "qkv"}
        alone = replace(case.copy(), batch=make_batch([(1, context)], [table], 16), **here)
        assert torch.equal(attended(alone)[0], whole[n]), context
    try:
        torch.set_num_threads(2)
        assert torch.equal(attended(case), whole)
    finally:
        torch.set_num_threads(usual)


def test_what_is_not_a_number_stays_in_its_row() -> None:
    case = case_of([(1, 30), (1, 150), (1, 20)])
    clean = attended(case)
    case.k[1, 0, 3] = torch.nan
    found = attended(case)
    assert torch.equal(found[::2], clean[::2])
    assert found[1, :3].isnan().all() and torch.equal(found[1, 3:], clean[1, 3:]), "its key head only"


def test_queries_keys_and_values_may_be_parts_of_one_tensor() -> None:
    case = case_of([(1, 30), (1, 20)])
    joined = torch.cat((case.q, case.k, case.v), 1)
    q, k, v = joined.split((6, 2, 2), 1)
    assert torch.equal(attended(replace(case, q=q, k=k, v=v)), attended(case))
    turned = case.q.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(attended(replace(case, q=turned)), attended(case))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"softcap": 5.0}, "windows and sinks"),
        ({"chunk": 8}, "windows and sinks"),
        ({"window": 8, "kept": 4}, "windows and sinks"),
        ({"slopes": (0.5,) * 4}, "windows and sinks"),
        ({"value_dim": 24}, "no heads of 64 and 24 numbers"),
        ({"key_dim": 63}, "no heads of 63 and 64 numbers"),
        ({"heads": 4096}, "no heads of"),
    ],
)
def test_other_layers_are_left_to_torch(changed: dict[str, int], reason: str) -> None:
    spec = replace(LayerSpec(heads=4, kv_heads=2, key_dim=64, value_dim=64, scale=0.2), **changed)
    assert reason in (attention.why_not(spec, torch.bfloat16) or "")
    case = make_case(replace(spec, heads=4), [(1, 5)], dtype=torch.bfloat16)
    assert attention.takes(case.layer, case.q) is (spec.heads > 4)


def test_other_types_and_caches_are_left_to_torch() -> None:
    spec = LayerSpec(heads=4, kv_heads=2, key_dim=64, value_dim=64, scale=0.2)
    assert attention.why_not(spec, torch.float32) == "the kernel reads bfloat16, not torch.float32"
    case = make_case(spec, [(1, 5)])
    assert not attention.takes(case.layer, case.q)
    packed = case_of([(1, 5)])
    packed.layer.key_scales = torch.ones(1)
    assert not attention.takes(packed.layer, packed.q)
