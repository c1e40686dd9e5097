"""Prompts by warps that load and warps that attend: which use it, and its results on a GPU."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine.api.cache_spec import LayerSpec
from engine.kv.store import KVLayer
from tests.kernels.cases import make_long_case, packed

pytest.importorskip("triton", reason="no Triton here")

from engine.kernels.triton.attention import tiles
from engine.kernels.triton.attention.tiles import GpuLimits, Tile
from engine.kernels.triton.attention.work_plan import AttentionWork, Spans

SPEC = LayerSpec(heads=16, kv_heads=8, key_dim=128, value_dim=128, scale=128**-0.5)
HOPPER = GpuLimits(227 * 2**10, overlaps=True, hoppers=132)


@pytest.mark.parametrize(
    ("spec", "longest", "gpu", "block_size", "used"),
    [
        (SPEC, 512, HOPPER, 16, True),
        (SPEC, 512, HOPPER, 256, True),
        (SPEC, 512, HOPPER, 1, False),
        (SPEC, 512, HOPPER, 48, False),
        (SPEC, 512, replace(HOPPER, hoppers=0), 16, False),
        (SPEC, 5, HOPPER, 16, False),
        (replace(SPEC, key_dim=64, value_dim=64), 512, HOPPER, 16, False),
        (replace(SPEC, window=100), 512, HOPPER, 16, False),
        (replace(SPEC, softcap=20.0), 512, HOPPER, 16, False),
        (replace(SPEC, sinks=True), 512, HOPPER, 16, False),
    ],
)
def test_plain_layers_use_it(
    spec: LayerSpec,
    longest: int,
    gpu: GpuLimits,
    block_size: int,
    used: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tiles, "SPECIALIZED", 0)
    counts = np.array([longest])
    assert (tiles.for_prompts(spec, counts, counts, gpu, block_size) is not None) == used


@pytest.mark.soak
@pytest.mark.parametrize(
    ("heads", "block_size", "gathered", "dtype"),
    [(16, 16, False, torch.bfloat16), (56, 64, False, torch.float16), (32, 16, True, torch.bfloat16)],
)
def test_it_compiles_for_a_hopper(
    heads: int, block_size: int, gathered: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.runtime.jit import JITFunction

    from engine.kernels.triton.attention.specialized import attend_prompts
    from tests.kernels.steps.test_compiles import FakeDriver, active

    run, taken = JITFunction.run, {}

    def compile_only(kernel: Any, *given: Any, grid: Any, warmup: bool, **named: Any) -> None:
        made: Any = run(kernel, *given, grid=grid, warmup=True, **named)
        taken[kernel.fn.__name__] = made.metadata.shared, made.metadata.num_warps

    monkeypatch.setattr(JITFunction, "run", compile_only)
    with active(FakeDriver(90)), torch.device("meta"):
        spec = replace(SPEC, heads=heads)
        keys, values = torch.empty(2, 9, block_size, 8, 128, dtype=dtype)
        q = torch.empty(300, heads + 16, 128, dtype=dtype)[:, :heads]
        padded = 1 << (heads // 8 - 1).bit_length()
        tile = Tile(128 // padded, padded, 128, 4, 2, 132, False, specialized=True)
        spans = Spans(torch.empty(1, 4, dtype=torch.int32), 384, 384) if gathered else None
        items, merges = (torch.empty(size, dtype=torch.int32) for size in ((5, 8), (0, 4)))
        work, none = AttentionWork(tile, items, merges, 0, 0, spans), torch.empty(0)
        tables = torch.empty(1, 24, dtype=torch.int32)
        attend_prompts(torch.empty_like(q), none, none, q, KVLayer(spec, keys, values), tables, work, 0.1)
    shared, warps = taken["_attend_specialized"]
    assert shared <= HOPPER.room
    assert warps == 12
    assert ("_gather" in taken) == gathered


def test_it_refuses_sinks() -> None:
    """It would ignore them. Plans follow the spec, which says whether a layer has any."""
    from engine.kernels.triton.attention.specialized import attend_prompts

    none, tile = torch.empty(0), Tile(64, 2, 128, 4, 2, 132, False, specialized=True)
    layer = KVLayer(SPEC, none, none, torch.zeros(16))
    with pytest.raises(AssertionError):
        attend_prompts(none, none, none, none, layer, none, AttentionWork(tile, none, none, 0, 0), 0.1)
    case = make_long_case(SPEC, [(3, 3)], block_size=16, dtype=torch.float16, device=none.device, sinks=True)
    assert case.layer.spec.sinks


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("group", "block_size", "dtype"),
    [(1, 16, torch.bfloat16), (2, 64, torch.bfloat16), (4, 16, torch.float16), (7, 256, torch.bfloat16)],
)
def test_it_gives_the_same_as_the_torch_backend(
    group: int, block_size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts and chunks, whole and split, after a row of one token, also over a compressed cache."""
    from engine.attention.triton_backend import TritonAttention
    from tests.kernels.attention.test_attention_gpu import assert_right, outputs

    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("this GPU is no Hopper")
    monkeypatch.setattr(tiles, "SPECIALIZED", 0)
    spec = LayerSpec(heads=2 * group, kv_heads=2, key_dim=128, value_dim=128, scale=128**-0.5)
    for seed, chunks in enumerate(
        ([(300, 300), (177, 1000)], [(513, 9001)], [(4000, 4000)], [(3000, 3100), (1700, 1700), (120, 500)])
    ):
        case = make_long_case(
            spec, [(1, 90), *chunks], block_size=block_size, dtype=dtype, device=torch.device("cuda"),
            seed=seed,
        )  # fmt: skip
        last = TritonAttention().prepare(case.batch).launches(spec, 2, packed=False)[-1]
        assert last.tile.specialized
        assert_right(case)
        if seed == 2:
            got, expected = outputs(packed(case, "fp8"))
            assert float((got - expected).norm() / expected.norm()) < 1e-2
