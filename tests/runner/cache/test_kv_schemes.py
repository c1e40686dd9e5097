"""A compressed cache: replies independent of other requests and near the plain ones, in half the memory."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.api.cache_spec import KV_SCHEMES, KvSchemeName, LayerSpec
from engine.api.config import EngineConfig
from engine.api.errors import BadInput
from engine.api.events import Event, Recached
from engine.api.params import SamplingParams
from engine.attention import registry
from engine.attention.torch_backend import TorchAttention
from engine.execution import cache_blocks
from engine.execution.budget import CacheBudget
from engine.execution.cache_blocks import PlainStaging, blocks_of, swap
from engine.kv.store import KVStore, bits, move_blocks
from engine.kv.tiers.host import HostTier
from engine.serving.engine import Engine
from engine.start import start
from tests.cases import one_row_of, soak
from tests.outputs import Output, Outputs
from tests.runner.small import GREEDY, ask, drain, engine_on, run_to, turn, turn_until
from tests.speculation.test_company import FreeDrafts

PACKED = pytest.mark.parametrize("scheme", KV_SCHEMES[1:])
PROMPT = [1, *(40 + n % 150 for n in range(37))]
OTHER = [*PROMPT[:32], *range(200, 215)]
SPEC = LayerSpec(heads=32, kv_heads=8, key_dim=128, value_dim=128, scale=1.0)


def reply(engine: Engine, prompt: list[int], **changes: Any) -> Output:
    _, output = ask(engine, prompt, replace(GREEDY, **changes))
    drain(engine)
    return output


@PACKED
@pytest.mark.parametrize("dim", [64, 80, 128])
def test_nearly_twice_as_many_tokens_fit(scheme: KvSchemeName, dim: int) -> None:
    spec = replace(SPEC, key_dim=dim, value_dim=dim)
    plain, packed = (KVStore.block_bytes([spec] * 3, 16, torch.bfloat16, each) for each in ("none", scheme))
    assert plain / packed >= (3.3 if scheme == "int4" else 1.8)
    store = KVStore(
        [spec], blocks=5, block_size=16, host_blocks=2, dtype=torch.bfloat16, device=torch.device("cpu"),
        scheme=scheme,
    )  # fmt: skip
    assert store.nbytes == 5 * KVStore.block_bytes([spec], 16, torch.bfloat16, scheme)
    assert store.host_nbytes == 2 * KVStore.block_bytes([spec], 16, torch.bfloat16, scheme)
    assert store.read_per_token() == ((0, store.nbytes // 80),)


@pytest.mark.parametrize("scheme", KV_SCHEMES)
def test_whole_blocks_are_moved(scheme: KvSchemeName) -> None:
    store = KVStore(
        [SPEC] * 2, blocks=4, block_size=16, host_blocks=2, dtype=torch.float32, device=torch.device("cpu"),
        scheme=scheme,
    )  # fmt: skip
    for layer in store.layers:
        for tensor in map(bits, layer.tensors()):
            tensor[:] = torch.arange(tensor.numel()).view(tensor.shape) % 100
    before = [bits(each)[1].clone() for layer in store.layers for each in layer.tensors()]
    store.copy([(1, 3)])
    store.swap_out([(1, 0)])
    store.copy([(2, 1)])
    store.swap_in([(0, 2)])
    for block in (2, 3):
        after = [bits(each)[block] for layer in store.layers for each in layer.tensors()]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("scheme", KV_SCHEMES)
def test_a_block_as_bytes_holds_all_layers(scheme: KvSchemeName) -> None:
    store = KVStore(
        [SPEC] * 2, blocks=4, block_size=16, host_blocks=0, dtype=torch.float32, device=torch.device("cpu"),
        scheme=scheme,
    )  # fmt: skip
    tensors = [bits(each) for layer in store.layers for each in layer.tensors()]
    for tensor in tensors:
        tensor[:] = torch.arange(tensor.numel()).view(tensor.shape) % 100
    before = [tensor.clone() for tensor in tensors]
    blocks = blocks_of(store, torch.device("cpu"))
    data = blocks((1, 2)).read()()
    assert data.shape == (2, store.nbytes // 4)
    blocks((3, 0)).write(data)
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(tensor, old[[2, 1, 2, 1]])


def test_without_pinned_memory_there_are_no_swaps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A preempted request is then recomputed."""

    def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if dtype is torch.uint8:
            raise RuntimeError("CUDA error: out of memory")
        return torch.zeros(shape, dtype=dtype)

    monkeypatch.setattr("engine.kv.store.zeros", zeros)
    store = KVStore(
        [SPEC] * 2, blocks=4, block_size=16, host_blocks=5, dtype=torch.float32, device=torch.device("cpu")
    )
    tier = HostTier(store)
    assert tier.size == tier.room() == store.host_nbytes == 0
    assert "not enough host memory for 5 blocks" in caplog.text


WAYS = product([0, 1], ["recompute", "swap"], KV_SCHEMES[1:])


@pytest.mark.parametrize(("depth", "preemption", "scheme"), one_row_of(5, WAYS))
def test_other_requests_do_not_change_a_reply(llama: Path, scheme: str, preemption: str, depth: int) -> None:
    """Chunked, preempted, swapped, forked or from the prefix cache, at either depth: the reply as alone."""
    alone = {
        n: reply(engine_on(llama, kv_scheme=scheme, prefix_cache=False), prompt).reply
        for n, prompt in enumerate((PROMPT, OTHER))
    }
    engine = engine_on(
        llama, kv_scheme=scheme, depth=depth, max_step_tokens=11, preemption=preemption, host_blocks=16
    )
    (first, one), (_, two) = ask(engine, PROMPT), ask(engine, OTHER)
    run_to(engine, one, 3)
    engine.preempt(first)
    turn(engine)
    drain(engine)
    assert (one.reply, two.reply) == (alone[0], alone[1])
    hits = engine.scheduler.cached_tokens
    (again, three), four = ask(engine, PROMPT), Output()
    run_to(engine, three, 1)
    engine.fork(again, four)
    drain(engine)
    assert three.reply == alone[0]
    assert [*three.tokens[: len(three.tokens) - len(four.tokens)], *four.tokens] == three.tokens
    assert engine.scheduler.cached_tokens > hits


@pytest.mark.parametrize("scheme", ["int4", *soak("int8", "fp8")])
def test_rejected_drafts_leave_no_trace(llama: Path, scheme: str) -> None:
    """Drafts across the ends of blocks, at either depth."""
    prompt = [1, 70, 71, 70, 71]
    changes = {"max_tokens": 40, "logit_bias": {70: 22.0, 71: 21.5}, "temperature": 1.0, "seed": 3}
    plain = reply(engine_on(llama, kv_scheme=scheme), prompt, **changes)
    for depth in (0, 1):
        engine = engine_on(llama, kv_scheme=scheme, depth=depth)
        engine.scheduler.speculator.prices = FreeDrafts()
        found = reply(engine, prompt, speculate="ngram", **changes)
        assert found.reply == plain.reply
        total = engine.scheduler.speculator.total()
        assert total.drafted - total.accepted >= 3, f"drafts of this text are often wrong: {total}"


@PACKED
def test_a_compressed_cache_changes_logprobs_slightly(llama: Path, scheme: str) -> None:
    forced = {"logprobs": 0, "max_tokens": 12}
    plain = reply(engine_on(llama), PROMPT, **forced)
    bias = {"logit_bias": {}}
    packed = reply(engine_on(llama, kv_scheme=scheme), PROMPT, **forced, **bias)
    first, other = plain.logprobs[0].logprob, packed.logprobs[0].logprob
    assert first != other
    assert abs(first - other) < (0.2 if scheme == "int4" else 0.05)


def test_an_idle_engine_changes_its_kv_scheme(llama: Path) -> None:
    engine, events = engine_on(llama), list[Event]()
    engine.bus.subscribe(events.append)
    few = {"max_tokens": 8}
    replies = {each: reply(engine_on(llama, kv_scheme=each), PROMPT, **few).reply for each in KV_SCHEMES}
    for scheme in ("int8", "fp8", "fp8", "none", "int4", "int8", "none"):
        engine.set_kv_scheme(scheme)
        assert engine.snapshot().kv_dtype == ("float32" if scheme == "none" else scheme)
        for _ in range(2):  # the second one uses the prefix cache
            assert reply(engine, PROMPT, **few).reply == replies[scheme]
        assert engine.runner.store.nbytes == engine.snapshot().memory["cache"]
    assert [each.scheme for each in events if isinstance(each, Recached)] == [
        "int8",
        "fp8",
        "none",
        "int4",
        "int8",
        "none",
    ]


def test_the_scheme_is_not_changed_while_requests_run(llama: Path) -> None:
    engine = engine_on(llama, depth=1)
    _, output = ask(engine, PROMPT)
    turn(engine)
    with pytest.raises(BadInput, match="cannot change the cache while requests are alive: wait for 1"):
        engine.set_kv_scheme("int8")
    drain(engine)
    assert output.reply == reply(engine, PROMPT).reply
    with pytest.raises(BadInput, match="unknown KV scheme 'int3'; available: none, int8, fp8, int4"):
        engine.set_kv_scheme("int3")


@pytest.mark.soak
@pytest.mark.parametrize("rows", [{"beams": 4}, {"n": 3, "temperature": 1.0}], ids=["beams", "samples"])
def test_the_error_counts_requests_and_not_their_rows(llama: Path, rows: dict[str, Any]) -> None:
    engine = engine_on(llama, depth=1)
    for _ in range(2):
        engine.submit(PROMPT, SamplingParams(max_tokens=9, **rows), Outputs())
    turn(engine)
    turn(engine)
    assert len(engine.scheduler.requests) > 2
    with pytest.raises(BadInput, match="wait for 2, or end them"):
        engine.set_kv_scheme("int8")


def test_the_scheme_may_change_as_soon_as_the_last_reply_ends(llama: Path) -> None:
    """A step launched before that end was found is still in flight."""
    engine = engine_on(llama, depth=1)
    last = reply(engine_on(llama), PROMPT).tokens[5]
    _, output = ask(engine, PROMPT, replace(GREEDY, stop_ids=(last,)))
    turn_until(engine, lambda: output.finish)
    assert engine.busy, "no step is in flight"
    engine.set_kv_scheme("int8")
    assert reply(engine, PROMPT).reply == reply(engine_on(llama, kv_scheme="int8"), PROMPT).reply


def test_without_memory_for_another_scheme_the_old_one_stays(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_on(llama)
    before, make = reply(engine, PROMPT).reply, CacheBudget.store

    def full(room: Any, scheme: str) -> KVStore:
        if scheme == "int8":
            raise MemoryError("full")
        return make(room, scheme)

    monkeypatch.setattr(CacheBudget, "store", full)
    with pytest.raises(BadInput, match="no room for a cache of int8: full; it stays none"):
        engine.set_kv_scheme("int8")
    assert engine.snapshot().kv_dtype == "float32"
    assert reply(engine, PROMPT).reply == before


def test_measured_memory_holds_more_compressed_blocks(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.cache_plan.free_memory", lambda device: 2**20)
    sizes = {}
    for scheme in KV_SCHEMES:
        engine = start(EngineConfig(model=str(llama), device="cpu", kv_scheme=scheme))
        sizes[scheme] = engine.scheduler.pool.size
        assert engine.runner.store.nbytes <= 2**18
    engine.set_kv_scheme("none")
    assert engine.scheduler.pool.size == sizes["none"]
    assert engine.limits.context == min(sizes["none"] * 16, engine.limits.context)
    engine.set_kv_scheme("int8")
    assert engine.scheduler.pool.size == sizes["int8"] > 2 * sizes["none"]  # which is float32


def test_a_cache_of_latents_is_not_compressed(checkpoint: Callable[[str], tuple[Path, Any]]) -> None:
    folder, _ = checkpoint("deepseek_v3")
    with pytest.raises(BadInput, match="a cache of latents cannot be stored as int8"):
        engine_on(folder, kv_scheme="int8")
    engine = engine_on(folder)
    before = reply(engine, PROMPT).reply
    with pytest.raises(BadInput, match="a cache of latents cannot be stored as fp8"):
        engine.set_kv_scheme("fp8")
    assert reply(engine, PROMPT).reply == before
    views = {view.name: view.why_not for view in engine.snapshot().kv_schemes}
    assert views["none"] == "" and "latents" in views["int8"]


class OldBackend(TorchAttention):
    """A third-party backend from before caches could be compressed."""

    name = "plain"
    kv_schemes = ("none",)


def test_a_backend_without_the_scheme_is_refused(
    llama: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: Callable[[str], object]
) -> None:
    monkeypatch.setitem(registry.BACKENDS, "plain", OldBackend)
    with pytest.raises(
        BadInput, match=r"'plain': it supports the KV cache schemes none, not int8; available here: .*torch"
    ):
        engine_on(llama, attention="plain", kv_scheme="int8")
    engine = engine_on(llama, attention="plain")
    reply(engine, PROMPT)
    cached = engine.scheduler.pool.cached
    with pytest.raises(BadInput, match="attention plain supports the KV schemes none, not fp8"):
        engine.set_kv_scheme("fp8")
    assert engine.scheduler.pool.cached == cached > 0, "the cache was changed"
    views = {view.name: view for view in engine.snapshot().kv_schemes}
    assert views["none"].why_not == "" != views["int8"].why_not
    assert views["fp8"].nbytes < views["none"].nbytes


@pytest.mark.parametrize("piece", [1, 2**26])
@pytest.mark.parametrize("scheme", KV_SCHEMES)
def test_swaps_by_copies_move_what_the_plain_ones_do(
    monkeypatch: pytest.MonkeyPatch, scheme: KvSchemeName, piece: int
) -> None:
    """Runs of host blocks, in any order."""
    monkeypatch.setattr(cache_blocks, "PIECE", piece)
    specs = [
        LayerSpec(heads=2, kv_heads=1, key_dim=24, value_dim=40, scale=1.0),
        LayerSpec(heads=4, kv_heads=2, key_dim=16, value_dim=16, scale=1.0),
    ]
    cpu = torch.device("cpu")
    store = KVStore(
        specs, blocks=9, block_size=16, host_blocks=7, dtype=torch.float16, device=cpu, scheme=scheme
    )
    inner, host = (
        [bits(each) for layer in side for each in layer.tensors()]
        for side in (store.layers, store.host.slabs[0])
    )
    for each in (*inner, *host):
        each.copy_(torch.randint(0, 100, each.shape))
    pairs = [(3, 4), (0, 5), (7, 1), (2, 6), (5, 0)]
    for out in (True, False):
        sides = (inner, host) if out else (host, inner)
        given = pairs if out else [(place, block) for block, place in pairs[1:]]
        expected = [each.clone() for each in sides[1]]
        move_blocks(sides[0], expected, given)
        swap(*sides, given, PlainStaging, out=out)
        for mine, theirs in zip(sides[1], expected, strict=True):
            assert torch.equal(mine, theirs)
        for each in inner:
            each.zero_()
