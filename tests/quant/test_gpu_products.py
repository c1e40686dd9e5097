"""Schemes on a GPU: products beside the dequantized weight, fused decoders, changes under chats."""

import gc
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.api import events
from engine.api.config import LayerSpec
from engine.api.request import Finish
from engine.attention.packing import pack
from engine.kv.store import PACKED, KVLayer
from engine.models.decoder import Decoder
from engine.models.source import finalize
from engine.quant import gpu_products
from engine.quant.fp8_linear import quantized as to_fp8
from engine.quant.registry import named
from tests.kernels.cases import make_long_case
from tests.kernels.test_stage_gpu import decoder
from tests.models.test_families import reference
from tests.quant.test_schemes import CLOSE, SHAPES, off, rows_of, skip_without_bitsandbytes, weight_of
from tests.quant.test_switching import changed_under_chats, engine_on, heard_of, reply
from tests.runner.letters import VOCAB, byte_tokenizer
from tests.runner.small import GREEDY, ask, drain

pytestmark = pytest.mark.cuda
GPU = torch.device("cuda")
OURS = ("int8", "int4", "int4-32", "int4-128", "fp8")
THEIRS = ("bnb-int8", "bnb-nf4", "bnb-fp4")
ROWS = (1, 2, 9, 17, 33, 65, 129, 300)  # on both sides of where kernels change


def multiplied(name: str, x: Tensor) -> Tensor:
    """The rows as the scheme multiplies them."""
    if name != "fp8":
        return x.double()
    eight, step = to_fp8(x)
    return eight.double() * step


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("name", [*OURS, *THEIRS])
@torch.inference_mode()
def test_is_the_product_with_what_was_kept(name: str, dtype: torch.dtype) -> None:
    if name in THEIRS:
        skip_without_bitsandbytes()
    limit = 0.012 if name == "bnb-int8" else max(CLOSE[dtype], 5e-3 if name == "fp8" else 0)
    for shape in (*SHAPES, (1024, 4096), (256, 14336)) if dtype is torch.bfloat16 else SHAPES:
        bias = rows_of(1, shape[0], dtype)[0].to(GPU)
        for added in (None, bias):
            made = named(name).make(weight_of(shape, dtype).to(GPU), added)
            kept = made.dequantized().double()
            for count in ROWS:
                x = rows_of(count, shape[1], dtype).to(GPU)
                expected = multiplied(name, x) @ kept.T + (0 if added is None else added.double())
                found = made(x)
                assert found.dtype is dtype and found.shape == expected.shape and found.is_contiguous()
                assert off(found, expected) < limit, (shape, count)
                assert off(made(x.T.contiguous().T), found) < limit


@pytest.mark.parametrize("name", ["int4", "int4-32"])
@torch.inference_mode()
def test_company_of_seven_changes_no_bit_of_four(name: str) -> None:
    made = named(name).make(weight_of((512, 1024), torch.bfloat16).to(GPU), None)
    x = rows_of(8, 1024, torch.bfloat16).to(GPU)
    whole = made(x)
    assert all(torch.equal(made(x[:count]), whole[:count]) for count in range(2, 8))


@pytest.mark.parametrize(
    ("scheme", "kv"),
    [*((each, "none") for each in OURS), ("none", "int8"), ("none", "fp8"), ("int4", "int8")],
)
@pytest.mark.parametrize("rows", [1, 17, 100])
def test_the_fused_forward_is_the_decoders(rows: int, kv: Any, scheme: str) -> None:
    """A number that fp8 rounds the other way takes a row as far away as that rounding does; few rows."""
    from engine.attention.triton_backend import TritonAttention
    from engine.models.fused import FusedDecoder

    model, exact = decoder(torch.bfloat16), decoder(torch.bfloat16)
    for layer in model.layers:
        finalize(layer, named(scheme))
    spec = model.config.layers[0]
    lengths = [(1, 40 + 13 * n % 900) for n in range(rows)] + ([(30, 200)] if rows == 17 else [])
    case = make_long_case(spec, lengths, block_size=16, dtype=torch.bfloat16, device=GPU)

    def layers() -> list[KVLayer]:
        plain = case.layer.keys.nan_to_num(0.0), case.layer.values.nan_to_num(0.0)
        if kv == "none":
            return [KVLayer(spec, *(each.clone() for each in plain)) for _ in model.layers]
        made = []
        for _ in model.layers:
            (keys, key_scales), (values, value_scales) = (pack(each, PACKED[kv]) for each in plain)
            made.append(KVLayer(spec, keys, values, None, key_scales, value_scales))
        return made

    backend, batch, others = TritonAttention(), case.batch, layers()
    ids = torch.arange(len(batch.positions), device=GPU) * 7

    def plain(of: Decoder, cells: list[KVLayer]) -> Tensor:
        return of.forward(
            ids, batch.positions, lambda n, q, k, v: backend.attend(q, k, v, cells[n], prepared)
        )

    with torch.inference_mode():
        prepared = backend.prepare(batch)
        wanted = plain(model, others)
        fused = FusedDecoder(model, layers(), backend)
        x = fused.embed(ids, torch.arange(len(ids), device=GPU), ids)
        got = fused.forward(x, batch.positions, batch.places, prepared)
        limit = 2e-2 if scheme != "fp8" else apart(plain(exact, layers()), wanted).min()
    error = apart(got, wanted)
    assert error.max() < limit, f"{error.max():.1e} at {error.argmax()}"
    assert len(error) == 1 or (error < 2e-2).float().mean() > 0.8


@pytest.mark.parametrize("hidden", [256, 1024])
@pytest.mark.parametrize("scheme", ["none", *OURS])
@torch.inference_mode()
def test_kernels_that_start_early_wait(scheme: str, hidden: int) -> None:
    """Layers so small that kernels of several find room beside each other, and may be far ahead."""
    from engine.attention.triton_backend import TritonAttention
    from engine.models.fused import FusedDecoder

    spec = LayerSpec(heads=hidden // 64, kv_heads=2, key_dim=64, value_dim=64, scale=0.125)
    model = decoder(torch.bfloat16, layers=(spec,) * 28, hidden=hidden, mlp=2 * hidden)
    for layer in model.layers:
        finalize(layer, named(scheme))
    case = make_long_case(spec, [(1, 300)], block_size=16, dtype=torch.bfloat16, device=GPU)
    cells = (case.layer.keys.nan_to_num(0.0), case.layer.values.nan_to_num(0.0))
    fused = FusedDecoder(model, [KVLayer(spec, *cells) for _ in model.layers], TritonAttention())
    prepared, slot = TritonAttention().prepare(case.batch), torch.zeros(1, dtype=torch.long, device=GPU)

    def forward() -> Tensor:
        return fused.forward(
            fused.embed(slot + 9, slot, slot), case.batch.positions, case.batch.places, prepared
        )

    assert fused.pdl(1)
    forward()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = forward()
    fused.pdl = lambda tokens: False  # type: ignore[method-assign]
    wanted = forward()
    for _ in range(50):
        graph.replay()
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("rows", ROWS)
@torch.inference_mode()
def test_a_head_in_bytes_is_the_product_with_what_was_kept(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many rows have it spread out piece by piece."""
    from engine.attention.triton_backend import TritonAttention
    from engine.models.fused import FusedDecoder

    monkeypatch.setattr(gpu_products, "SPREAD", 1024 * 1900)
    model = decoder(torch.bfloat16, tied=False)
    head = named("int8").make(model.head.weight, None)  # type: ignore[arg-type]
    model.head, x = head, rows_of(rows, 1024, torch.bfloat16).to(GPU)
    expected = x.double() @ head.dequantized().double().T  # type: ignore[operator]
    for found in (FusedDecoder(model, [], TritonAttention()).logits(x), model.logits(x)):
        assert found.shape == expected.shape and found.is_contiguous()
        assert off(found, expected) < CLOSE[torch.bfloat16]


def apart(one: Tensor, other: Tensor) -> Tensor:
    """How far each row is from the other's, relative to that."""
    return (one.float() - other.float()).norm(dim=1) / other.float().norm(dim=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llama")
    byte_tokenizer().save(str(made / "tokenizer.json"))
    reference("Llama", {"vocab_size": VOCAB, "hidden_size": 256, "intermediate_size": 512}, made)
    return made


@pytest.mark.parametrize("depth", [0, 1])
def test_twenty_changes_under_eight_chats(folder: Path, depth: int) -> None:
    """In CUDA graphs, which are recorded anew after each."""
    schemes = ("int8", "int4", "fp8", "int4-128", "none", "fp32")
    engine = engine_on(folder, device="cuda", depth=depth, prefix_cache=False)
    first, said = reply(engine), heard_of(engine)
    changed_under_chats(engine, random.Random(depth), 20, schemes)  # what is compiled and recorded stays
    before = used()
    heard = changed_under_chats(engine, random.Random(depth), 20, schemes)
    assert used() <= before * 1.02
    assert {each.finish for each in heard} == {Finish.LENGTH} and len(heard) >= 8
    over = [event for event in said if isinstance(event, events.Quantized)]
    assert len(over) >= 40 and {event.error for event in over} == {""}
    assert engine.scheduler.pool.in_use == 0
    assert reply(engine) == first, "the weights are not the same as before"


def used() -> int:
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


@pytest.mark.parametrize("scheme", ["none", *OURS, *THEIRS])
def test_replies_in_graphs_are_those_launched_one_by_one(folder: Path, scheme: str) -> None:
    if scheme in THEIRS:
        skip_without_bitsandbytes()
    said = []
    for graphs in (True, False):
        engine = engine_on(folder, device="cuda", quantization=scheme, prefix_cache=False)
        engine.runner.graphs = graphs  # type: ignore[attr-defined]
        said.append([reply(engine) for _ in range(3)])
    assert said[0] == said[1]


@pytest.mark.parametrize("kv", [{"kv_scheme": "int8"}, {"kv_scheme": "fp8"}, {"kv_window": 32}], ids=str)
def test_another_cache_says_nearly_what_a_cpu_says(folder: Path, kv: dict[str, Any]) -> None:
    """Tokens part where two are as good as equally likely, so it is the first ones that are compared."""
    said: list[list[float]] = []
    for device in ("cpu", "cuda"):
        engine = engine_on(folder, device=device, dtype="float32", prefix_cache=False, **kv)
        asked = [ask(engine, list(range(10 + n, 60 + n)), replace(GREEDY, logprobs=0))[1] for n in range(6)]
        drain(engine)
        said.append([heard.logprobs[0].logprob for heard in asked])
        if device == "cuda":
            assert engine.snapshot().attention == "triton"
            assert engine.runner.graphs  # type: ignore[attr-defined]
    assert said[0] == pytest.approx(said[1], abs=0.01)
