"""The backend over flashinfer without a GPU: what it refuses, and its calls to a fake of the package.

The fake computes the package's results, in loops over exactly the arrays it was given.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from engine.api.cache_spec import LayerSpec
from engine.api.errors import EngineError
from engine.attention import registry
from engine.attention.base import KVLayer
from engine.attention.cells import CacheCells
from engine.attention.registry import why_not
from engine.attention.torch_backend import TorchAttention
from tests.attention.cases import make_case

CPU, GPU = torch.device("cpu"), torch.device("cuda")
MODULE = "engine.attention.flashinfer_backend"
SPEC = LayerSpec(heads=4, kv_heads=2, key_dim=64, value_dim=64, scale=0.1)
HALF = torch.float16
ROWS = {
    "single": [(1, 1), (1, 16), (1, 17), (1, 50)],
    "chunks": [(3, 3), (20, 37), (2, 32)],
    "both": [(1, 40), (1, 5), (7, 7), (17, 33)],
    "one": [(1, 9)],
}


class Paged:
    """Base of both wrappers: stores a plan and runs by it."""

    made: ClassVar[list["Paged"]] = []  # in this test

    def __init__(
        self, workspace: Tensor, layout: str, backend: str = "auto", use_tensor_cores: bool = False
    ) -> None:
        assert (layout, workspace.dtype) == ("NHD", torch.uint8)
        self.plans, self.backend, self.tensor_cores = 0, backend, use_tensor_cores
        self.made.append(self)

    def keep(self, starts: Tensor, pages: tuple[Tensor, ...], heads: tuple[int, ...], **rest: Any) -> None:
        assert all(each.dtype is torch.int32 and each.device == CPU for each in (starts, *pages))
        self.starts, self.pages, self.heads, self.rest = starts, pages, heads, rest
        self.plans += 1

    def run(self, q: Tensor, cache: tuple[Tensor, Tensor], *, out: Tensor) -> Tensor:
        assert len(q) == self.starts[-1]
        (firsts, blocks, last), (heads, kv_heads, dim, size) = self.pages, self.heads
        assert q.shape[1:] == (heads, dim)
        for row in range(len(last)):
            mine = blocks[firsts[row] : firsts[row + 1]].long()
            context = (len(mine) - 1) * size + int(last[row])
            keys, values = (each[mine].flatten(0, 1)[:context].double() for each in cache)
            begin, end = self.starts[row : row + 2].tolist()
            for at in range(begin, end):
                place = context - (end - at)
                low = 0 if (left := self.rest["window_left"]) < 0 else max(0, place - left)
                for head in range(heads):
                    group = head // (heads // kv_heads)
                    scores = keys[low : place + 1, group] @ q[at, head].double() * self.rest["sm_scale"]
                    if cap := self.rest["logits_soft_cap"]:
                        scores = torch.tanh(scores / cap) * cap
                    out[at, head] = scores.softmax(0) @ values[low : place + 1, group]
        return out


class Decode(Paged):
    def plan(self, starts: Tensor, blocks: Tensor, last: Tensor, *heads: int, **rest: Any) -> None:
        self.keep(torch.arange(len(last) + 1, dtype=torch.int32), (starts, blocks, last), heads, **rest)


class Prefill(Paged):
    def plan(
        self, queries: Tensor, starts: Tensor, blocks: Tensor, last: Tensor, *heads: int, **rest: Any
    ) -> None:
        assert rest["causal"]
        self.keep(queries, (starts, blocks, last), heads, **rest)


class Event:
    """A CUDA event. Waiting before anything is recorded returns at once; a plan in use is not overwritten."""

    made: ClassVar[list["Event"]] = []  # in this test

    def __init__(self) -> None:
        self.waited = True
        self.made.append(self)

    def record(self) -> None:
        self.waited = False

    def synchronize(self) -> None:
        self.waited = True


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module over the fake package, with everything that it needs."""
    pytest.importorskip("triton", reason="no Triton here, which writes the cache")
    Paged.made.clear()
    Event.made.clear()
    package, jit, env, compiler = (
        ModuleType(f"flashinfer{name}") for name in ("", ".jit", ".jit.env", ".jit.cpp_ext")
    )
    package.BatchDecodeWithPagedKVCacheWrapper, package.BatchPrefillWithPagedKVCacheWrapper = Decode, Prefill
    package.jit, jit.env, jit.cpp_ext = jit, env, compiler
    env.has_flashinfer_jit_cache, compiler.get_cuda_path = lambda: True, lambda: "/cuda"
    for each in (package, jit, env, compiler):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    monkeypatch.setattr(registry, "BACKENDS", dict(registry.BACKENDS))
    monkeypatch.delitem(registry.BACKENDS, "flashinfer", raising=False)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=12)
    )
    assert why_not("flashinfer", GPU, [SPEC], HALF) is None
    module = sys.modules[MODULE]
    monkeypatch.setattr(module, "write", write_like_torch)
    monkeypatch.setattr(module, "WORKSPACE", 8)
    yield module
    sys.modules.pop(MODULE, None)


def write_like_torch(layer: KVLayer, k: Tensor, v: Tensor, places: Tensor, *, pdl: bool) -> None:
    assert not pdl
    CacheCells.of_layer(layer.keys, None).write(places, k, ())
    CacheCells.of_layer(layer.values, None).write(places, v, ())


def test_the_reason_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BACKENDS", {})
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    reason = why_not("flashinfer", CPU, [SPEC], HALF) or ""
    assert reason.startswith("it cannot be imported")
    assert "flashinfer" in reason


@pytest.mark.parametrize("rows", list(ROWS))
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (1, None), (20, None), (None, 2.0)])
def test_any_rows_are_right(backend: Any, rows: str, window: int | None, softcap: float | None) -> None:
    spec = LayerSpec(heads=4, kv_heads=2, key_dim=64, value_dim=64, scale=0.1, window=window, softcap=softcap)
    case = make_case(spec, ROWS[rows], shuffled=True)
    other = case.copy()
    ours, oracle = backend.FlashInfer(), TorchAttention()
    got = ours.attend(case.q, case.k, case.v, case.layer, ours.prepare(case.batch))
    expected = oracle.attend(other.q, other.k, other.v, other.layer, oracle.prepare(other.batch))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(case.layer.keys.nan_to_num(7.0), other.layer.keys.nan_to_num(7.0))


def test_a_step_is_planned_once_for_each_kind_of_layer(backend: Any) -> None:
    kinds = [SPEC, LayerSpec(heads=4, kv_heads=2, key_dim=64, value_dim=64, scale=0.1, window=8)]
    cases = [make_case(kind, ROWS["both"], shuffled=True) for kind in kinds]
    ours = backend.FlashInfer()
    for step in range(1, 4):
        prepared = ours.prepare(cases[0].batch)
        for case in cases * 3:
            ours.attend(case.q, case.k, case.v, case.layer, prepared)
        used = [each for each in Paged.made if each.plans]
        assert [(type(each), each.plans) for each in used] == [(Decode, step), (Prefill, step)] * 2
        assert [each.rest["window_left"] for each in used] == [-1, -1, 7, 7]


@pytest.mark.parametrize(
    ("chunks", "kernels"),
    [
        ([5] * 32, "fa2"),  # short
        ([300], "auto"),  # 3 tiles of 4 heads fill the 12 processors
        ([256], "fa2"),
        ([100, 100, 20], "auto"),
        ([100, 20, 20], "fa2"),
    ],
)
def test_long_chunks_use_the_faster_kernels(backend: Any, chunks: list[int], kernels: str) -> None:
    ours, rows = backend.FlashInfer(), [(1, 3), *((each, each) for each in chunks)]
    for spec, expected in (
        (SPEC, kernels),
        (replace(SPEC, window=8), "fa2"),
        (replace(SPEC, softcap=2.0), "fa2"),
    ):
        Paged.made.clear()
        case = make_case(spec, rows)
        ours.attend(case.q, case.k, case.v, case.layer, ours.prepare(case.batch))
        assert [each.backend for each in Paged.made if isinstance(each, Prefill) and each.plans] == [expected]


@pytest.mark.parametrize(("heads", "cores"), [(2, False), (6, False), (8, True), (10, True)])
def test_tensor_cores_are_for_heads_that_share_keys(backend: Any, heads: int, cores: bool) -> None:
    spec = LayerSpec(heads=heads, kv_heads=2, key_dim=64, value_dim=64, scale=0.1)
    for changes, expected in (({}, cores), ({"window": 8}, True), ({"softcap": 2.0}, True)):
        Paged.made.clear()
        ours, case = backend.FlashInfer(), make_case(replace(spec, **changes), ROWS["one"])
        ours.attend(case.q, case.k, case.v, case.layer, ours.prepare(case.batch))
        assert [each.tensor_cores for each in Paged.made if isinstance(each, Decode)] == [expected]


def test_a_plan_waits_until_the_last_one_is_uploaded(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, case = backend.FlashInfer(), make_case(SPEC, ROWS["single"])
    for _ in range(2):
        ours.attend(case.q, case.k, case.v, case.layer, ours.prepare(case.batch))
    [uploaded] = Event.made
    keep = Decode.keep

    def guarded(self: Paged, *args: Any, **rest: Any) -> None:
        assert uploaded.waited
        keep(self, *args, **rest)

    monkeypatch.setattr(Decode, "keep", guarded)
    ours.attend(case.q, case.k, case.v, case.layer, ours.prepare(case.batch))
    assert not uploaded.waited


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (
            "Ninja build failed. Ninja output:\nnvcc a.cu\nat.h:52:10: fatal error: curand.h: none\nmore\n",
            "flashinfer could not compile a kernel (at.h:52:10: fatal error: curand.h: none); "
            "attention 'triton' needs no compiler",
        ),
        ("out of workspace", "out of workspace"),
    ],
)
def test_a_compiler_error_becomes_one_sentence(
    backend: Any, monkeypatch: pytest.MonkeyPatch, raised: str, reason: str
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError(raised)

    ours, case = backend.FlashInfer(), make_case(SPEC, ROWS["single"])
    prepared = ours.prepare(case.batch)
    with monkeypatch.context() as patch:
        patch.setattr(Decode, "plan", fails)
        with pytest.raises((EngineError, RuntimeError)) as caught:
            ours.attend(case.q, case.k, case.v, case.layer, prepared)
    assert str(caught.value) == reason
    ours.attend(case.q, case.k, case.v, case.layer, prepared)  # a failed plan is made again


def test_the_reason_for_each_unsupported_case(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(
        dtype: torch.dtype = HALF, device: torch.device = GPU, kv: Any = "none", **changes: Any
    ) -> str | None:
        shape = {"heads": 4, "kv_heads": 2, "key_dim": 64, "value_dim": 64, "scale": 0.1}
        return why_not("flashinfer", device, [LayerSpec(**shape | changes)], dtype, kv)

    assert reason(window=9) is None
    assert reason(softcap=3.0) is None
    assert reason(device=CPU) == "it needs an NVIDIA GPU, and the device is cpu"
    assert reason(torch.float32) == "it supports float16 and bfloat16, not torch.float32"
    assert (
        reason(key_dim=80, value_dim=80)
        == "it supports equal key and value dimensions of 64 or 128, not 80 and 80"
    )
    assert reason(key_dim=128) == "it supports equal key and value dimensions of 64 or 128, not 128 and 64"
    assert reason(sinks=True) == "it does not support layers with attention sinks"
    assert reason(kv="int8") == "it supports the KV cache schemes none, not int8"
    assert reason(window=9, kept=4) == "it does not support a window that keeps the first tokens (kv_window)"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert reason() == "it needs compute capability 8.0, and cuda has 7.5"


def test_it_needs_compiled_kernels_or_a_compiler(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_cuda() -> str:
        raise RuntimeError("no nvcc anywhere")

    present: set[str] = set()
    monkeypatch.setattr(backend, "env", SimpleNamespace(has_flashinfer_jit_cache=lambda: False))
    monkeypatch.setattr(
        backend, "shutil", SimpleNamespace(which=lambda name: name if name in present else None)
    )
    lacks = "it has no compiled kernels (flashinfer-jit-cache), nor the tool to compile them: "
    assert why_not("flashinfer", GPU, [SPEC], HALF) == f"{lacks}/cuda/bin/nvcc"
    present.add("/cuda/bin/nvcc")
    assert why_not("flashinfer", GPU, [SPEC], HALF) == f"{lacks}ninja"
    present.add("ninja")
    assert why_not("flashinfer", GPU, [SPEC], HALF) is None
    monkeypatch.setattr(backend, "get_cuda_path", no_cuda)
    assert (why_not("flashinfer", GPU, [SPEC], HALF) or "").endswith("cannot compile them: no nvcc anywhere")
