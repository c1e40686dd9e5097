"""The Triton backend on a GPU, against the torch backend in float32 on the same numbers."""

import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.api.cache_spec import KvSchemeName, LayerSpec
from engine.attention.torch_backend import TorchAttention
from engine.kv.store import bits
from tests.attention.cases import Case
from tests.attention.test_torch_backend import SLOPES
from tests.kernels.cases import make_long_case, packed

pytestmark = pytest.mark.cuda

TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 6e-3}
SHAPES = list(product((64, 80, 96, 128, 256), (1, 2, 3, 4, 7, 8, 16)))


def outputs(case: Case) -> tuple[Tensor, Tensor]:
    """Return the kernels' output and the oracle's. Both write the cache, and must write the same."""
    from engine.attention.triton_backend import TritonAttention

    kernels, oracle, other = TritonAttention(), TorchAttention(), case.copy()
    with torch.inference_mode():
        got = kernels.attend(case.q, case.k, case.v, case.layer, kernels.prepare(case.batch))
        expected = oracle.attend(other.q.float(), other.k, other.v, other.layer, oracle.prepare(other.batch))
    for mine, theirs in zip(case.layer.tensors(), other.layer.tensors(), strict=True):
        if mine.is_floating_point() and mine.itemsize > 1:
            assert torch.equal(mine.nan_to_num(7.0), theirs.nan_to_num(7.0))
        else:  # where a scale is NaN, cells may hold anything
            assert (bits(mine) != bits(theirs)).float().mean() < 1e-3
    assert got.dtype == case.q.dtype
    return got.float(), expected


def assert_right(case: Case) -> None:
    got, expected = outputs(case)
    assert got.isfinite().all()
    tolerance = TOLERANCES[case.q.dtype]
    worst = (got - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)  # of each token
    assert worst.max() < tolerance, f"relative error {worst.max():.1e} at token {worst.argmax()}"


@pytest.mark.parametrize(("dim", "group"), SHAPES)
def test_any_shape_is_right(dim: int, group: int) -> None:
    draw = random.Random(f"{dim} {group}")
    kv_heads = draw.choice((1, 2, 8) if dim * group < 2048 else (1, 2))
    plain = LayerSpec(heads=kv_heads * group, kv_heads=kv_heads, key_dim=dim, value_dim=dim, scale=dim**-0.5)
    for dtype in (torch.bfloat16, torch.float16):
        spec = replace(
            plain,
            softcap=draw.choice((None, None, 20.0)),
            **draw.choice(({}, {"window": draw.randint(1, 5000)}, {"chunk": draw.randint(1, 5000)})),
        )
        block_size, sinks = draw.choice((16, 32, 64, 128, 256)), draw.random() < 0.3
        longest = draw.choice((200, 3000, 32768))
        singles = [(1, draw.randint(1, longest)) for _ in range(draw.choice((1, 3, 40)))]
        chunks = [
            (count, count + draw.randint(0, longest)) for count in (draw.randint(2, 9), draw.randint(10, 400))
        ]
        for seed, rows in enumerate((singles, chunks, [*singles, *chunks])):
            assert_right(
                make_long_case(
                    spec,
                    rows,
                    block_size=block_size,
                    dtype=dtype,
                    device=torch.device("cuda"),
                    sinks=sinks,
                    seed=seed,
                )
            )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("dim", "group"), [(64, 2), (128, 1), (128, 2), (128, 4), (128, 7)])
def test_prompts_are_right(dim: int, group: int, dtype: torch.dtype) -> None:
    """Short and long prompts, gathered and in blocks, whole and split, after a row of one token."""
    from engine.attention.graph_work import gpu
    from engine.kernels.triton.attention import tiles

    draw, gathered = random.Random(f"{dim} {group}"), 0
    spec = LayerSpec(heads=2 * group, kv_heads=2, key_dim=dim, value_dim=dim, scale=dim**-0.5)
    prompts = (
        [(300, 300), (77, 1000)],
        [(513, 9001)],
        [(4000, 4000)],
        [(3000, 3100), (1700, 1700), (120, 500)],
    )
    for seed, chunks in enumerate(prompts):
        capped = replace(spec, softcap=draw.choice((None, 20.0)))
        counts, contexts = torch.tensor(chunks).numpy().T
        gathered += tiles.for_gathered(capped, counts, contexts, gpu(torch.device("cuda", 0)), 2) is not None
        case = make_long_case(
            capped, [(1, 90), *chunks], block_size=draw.choice((16, 32, 64, 256)), dtype=dtype,
            device=torch.device("cuda"), sinks=draw.random() < 0.5, seed=seed,
        )  # fmt: skip
        assert_right(case)
    assert gathered >= (1 if torch.cuda.get_device_capability() >= (9, 0) else 0)


@pytest.mark.parametrize("scheme", ["none", "int8", "fp8"])
@pytest.mark.parametrize(
    "limit",
    [{}, {"window": 100}, {"window": 3000}, {"chunk": 700}, {"slopes": SLOPES}],
    ids=["", "100", "3000", "chunk", "slopes"],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_packed_caches_windows_chunks_and_slopes_are_right(
    dtype: torch.dtype, limit: dict[str, Any], scheme: KvSchemeName
) -> None:
    for seed, (dim, group) in enumerate(((128, 2), (128, 4), (64, 7), (256, 1), (80, 16))):
        draw = random.Random(seed)
        spec = LayerSpec(
            heads=2 * group, kv_heads=2, key_dim=dim, value_dim=dim, scale=dim**-0.5, **limit,
            kept=draw.choice((4, 4, 20)) if "window" in limit else 0,
        )  # fmt: skip
        spec = replace(spec, slopes=spec.slopes[: spec.heads])
        singles = [(1, draw.randint(1, 9000)) for _ in range(draw.choice((1, 3, 40)))]
        chunks = [(5, 5 + draw.randint(0, 9000)), (draw.randint(10, 400), 5000)]
        for rows in (singles, [*singles, *chunks]):
            case = make_long_case(
                spec, rows, block_size=draw.choice((16, 64)), dtype=dtype, device=torch.device("cuda"),
                sinks=seed == 1, seed=seed,
            )  # fmt: skip
            assert_right(case if scheme == "none" else packed(case, scheme))


@pytest.mark.parametrize("value_dim", [64, 128])
def test_float32_is_exact(value_dim: int) -> None:
    spec = LayerSpec(heads=8, kv_heads=2, key_dim=128, value_dim=value_dim, scale=0.1)
    rows = [(1, 3000), (1, 5), (60, 700)]
    assert_right(make_long_case(spec, rows, block_size=16, dtype=torch.float32, device=torch.device("cuda")))


def test_other_rows_change_only_rounding() -> None:
    """A long row is split among short rows, and split differently when it is alone."""
    spec = LayerSpec(heads=16, kv_heads=8, key_dim=128, value_dim=128, scale=0.09)
    rows = [(1, 32768), *[(1, 100 + 7 * each) for each in range(60)]]
    assert_right(make_long_case(spec, rows, block_size=16, dtype=torch.bfloat16, device=torch.device("cuda")))


def test_never_synchronizes_and_runs_in_a_graph() -> None:
    from engine.attention.triton_backend import TritonAttention

    spec = LayerSpec(heads=16, kv_heads=8, key_dim=128, value_dim=128, scale=0.09)
    rows = [(1, 3000), (1, 70), (40, 500)]
    case = make_long_case(spec, rows, block_size=16, dtype=torch.bfloat16, device=torch.device("cuda"))
    _, expected = outputs(case.copy())  # compiles missing kernels
    backend = TritonAttention()
    torch.cuda.set_sync_debug_mode("error")
    try:
        prepared = backend.prepare(case.batch)
        backend.attend(case.q, case.k, case.v, case.layer, prepared)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = backend.attend(case.q, case.k, case.v, case.layer, prepared)
    got.fill_(torch.nan)
    graph.replay()
    assert (got.float() - expected).norm() < TOLERANCES[torch.bfloat16] * expected.norm()
