"""A change of the weights changes their size, as forecast, and that of the cache."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engine import assembly, cache_plan
from engine.api.config import ModelPlace
from engine.api.errors import BadInput
from engine.api.events import Event, Evicted
from engine.api.request import Finish
from engine.execution.weights import Weights, nbytes, weight_bytes
from engine.kernels.cpu import int8_digits
from engine.kernels.cpu.compiled import product as compiled
from engine.models.decoder import Decoder
from engine.models.registry import load_model
from engine.quant import fp4, fp8_linear, int4, int8
from engine.quant.registry import named
from engine.serving.engine import Engine
from tests.models.families import EXPERTS, reference
from tests.quant.changing import PROMPT, drain_of, engine_on, parts_changed, switch
from tests.runner.small import GREEDY, ask, drain, turn, turn_until

# None of these is a multiple of what kernels pad to.
UNEVEN: dict[str, Any] = {"vocab_size": 301, "hidden_size": 72, "intermediate_size": 300, "head_dim": 24}
FAMILIES = [
    ("Llama", UNEVEN),
    ("Llama", UNEVEN | {"tie_word_embeddings": True}),
    ("Qwen2Moe", EXPERTS | {"qkv_bias": False}),
]


class TestRoom:
    """The cache grows into memory that weights free, and shrinks again."""

    def engine(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, blocks: int = 40, **config: Any
    ) -> Engine:
        """An engine with memory for `blocks` blocks, which uses all that int4 weights free."""
        plain = engine_on(folder, blocks=1, **config)
        each = plain.runner.store.nbytes  # type: ignore[attr-defined]
        monkeypatch.setattr(cache_plan, "free_memory", lambda device: 4 * blocks * each)  # a quarter is used
        monkeypatch.setattr(assembly, "Weights", lambda *given, share: Weights(*given, share=1.0))
        made = engine_on(folder, blocks=None, **config)
        assert made.scheduler.pool.size == blocks
        return made

    def test_it_grows_at_once_and_shrinks_back(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = self.engine(folder, monkeypatch, blocks=40)
        assert engine.runner.fit().blocks == 40
        sizes = []
        for scheme in ("int8", "int4", "none", "int4"):
            prompt = [len(sizes) + at for at in PROMPT]
            _, outputs = ask(engine, prompt, replace(GREEDY, max_tokens=30))
            for _ in range(8):
                turn(engine)
            switch(engine, scheme)
            sizes.append(engine.scheduler.pool.size)
            assert len(engine.runner.store.layers[0].keys) == sizes[-1]  # type: ignore[attr-defined]
            drain(engine)
            assert outputs.finish is Finish.LENGTH
        assert 40 < sizes[0] < sizes[1] and sizes[2] == 40 and sizes[3] == sizes[1]

    def test_it_shrinks_by_evicting_then_by_preempting(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A request that keeps its blocks gives the same reply as if they had not been moved."""
        engine = self.engine(folder, monkeypatch, blocks=36, max_context=256, preemption="recompute")
        events = list[Event]()
        engine.bus.subscribe(events.append)
        switch(engine, "int4")
        large = engine.scheduler.pool.size
        assert large > 60
        long = replace(GREEDY, max_tokens=170)
        outputs = [ask(engine, [at, *PROMPT], long)[1] for at in range(large // 14)]
        turn_until(engine, lambda: engine.scheduler.pool.in_use >= large - 8)
        switch(engine, "none")
        assert engine.scheduler.pool.size == 36
        assert engine.scheduler.preemptions > 0, "no request was preempted"
        assert engine.scheduler.running, "every request was preempted"
        evicted = [event for event in events if isinstance(event, Evicted)]
        assert evicted[-1].request == -1, "no request took their space"
        assert sum(event.blocks for event in evicted) == engine.scheduler.pool.evictions
        drain(engine)
        assert [each.finish for each in outputs] == [Finish.LENGTH] * len(outputs)

    def test_moved_blocks_keep_their_contents(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same change with and without a move gives the same tokens."""
        replies = []
        for crowd in (0, 12):
            engine = self.engine(folder, monkeypatch, blocks=36, max_context=256, dtype="float32")
            switch(engine, "int8")
            ids = [ask(engine, [at, *PROMPT], GREEDY)[0] for at in range(crowd)]
            while any(each.pending or each.launched < 41 for each in engine.scheduler.requests.values()):
                turn(engine)
            _, outputs = ask(engine, PROMPT[::-1], replace(GREEDY, max_tokens=40))
            for _ in range(6):
                turn(engine)
            places = [
                max(each.blocks) for each in engine.scheduler.running if not crowd or each.id not in ids
            ]
            for id in ids:
                engine.abort(id)
            switch(engine, "none")
            assert engine.scheduler.pool.size == 36 and (places[0] >= 36) is bool(crowd)
            drain(engine)
            replies.append(outputs.tokens)
        assert replies[0] == replies[1] and len(replies[0]) == 40

    def test_a_change_that_leaves_too_little_is_refused(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = self.engine(folder, monkeypatch, blocks=4, max_context=128)
        engine.limits = replace(engine.limits, context=128)
        with pytest.raises(BadInput, match=r"'fp32' would leave .* a request may have 128"):
            engine.set_quantization("fp32")
        assert not engine.busy

    def test_no_memory_for_more_blocks_is_not_an_error(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = self.engine(folder, monkeypatch, blocks=40)
        store, size = engine.runner.store, engine.scheduler.pool.size  # type: ignore[attr-defined]
        whole = store.resize

        def resize(blocks: int, held: Any) -> None:
            if blocks > size:
                raise RuntimeError("can't allocate memory")
            whole(blocks, held)

        monkeypatch.setattr(store, "resize", resize)
        switch(engine, "int8")
        assert engine.scheduler.pool.size == size
        drain_of(engine, PROMPT)


def missing(*_: Any) -> str:
    return "this CPU has no instructions for it"


def check_forecasts(family: str, changed: dict[str, Any], folder: Path, device: str, dtype: str) -> None:
    reference(family, changed, folder)
    model = load_model(ModelPlace("it", folder), device=device, dtype=dtype)
    assert isinstance(model, Decoder)
    present = "none"
    for view in Weights(model, present, share=1.0).schemes("none", lambda more: None):
        if view.why_not or view.name == present:
            continue
        forecast = nbytes(model, model.source.scheme(view.name))
        list(parts_changed(model, present, view.name))
        assert forecast == weight_bytes(model), view.name
        present = view.name


@pytest.mark.parametrize(("family", "changed"), FAMILIES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kernels", ["here", "compiled", "tables"])
def test_the_size_is_the_forecast_one_on_a_cpu(
    family: str,
    changed: dict[str, Any],
    dtype: str,
    kernels: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if kernels == "compiled":  # the weights are laid out anywhere
        monkeypatch.setattr(
            compiled, "why_not", lambda bits, kind: None if kind is torch.bfloat16 else missing()
        )
        monkeypatch.setattr(int8_digits, "why_not", lambda kind: compiled.why_not(8, kind))
        monkeypatch.setattr(compiled, "_kernel", missing)
    if kernels == "tables":
        monkeypatch.setattr(compiled, "why_not", missing)
        monkeypatch.setattr(int8_digits, "why_not", missing)
    check_forecasts(family, changed, tmp_path, "cpu", dtype)


@pytest.mark.parametrize("shape", [(301, 72), (512, 256), (33, 100)])
def test_the_size_of_products_of_a_gpu(shape: tuple[int, int]) -> None:
    """They are made here on a CPU, where they do not run."""
    pytest.importorskip("triton")
    from engine.quant.gpu_products import Fp4Product, Fp8Product, Int4Product, Int8Product

    gpu, dtype, weight = torch.device("cuda"), torch.bfloat16, torch.randn(shape).bfloat16()

    def expect(product: nn.Module, forecast: int) -> None:
        assert sum(each.nbytes for each in product.buffers()) == forecast, type(product)

    expect(Int8Product(*int8.quantized(weight), None), named("int8").nbytes(*shape, dtype, gpu))
    expect(Fp8Product(*fp8_linear.quantized(weight), None), named("fp8").nbytes(*shape, dtype, gpu))
    for group in int4.GROUPS:
        made = Int4Product(int4.grouped(weight, group), None, shape[1], dtype)
        expect(made, named(f"int4-{group}").nbytes(*shape, dtype, gpu))
    numbers = torch.zeros(shape[0], 192, dtype=torch.uint8)
    scale = torch.zeros(shape[0], 12, dtype=torch.uint8)
    expect(Fp4Product(numbers, scale, torch.ones(shape[0]), None, dtype), fp4.nbytes(shape[0], 192, 16, gpu))


@pytest.mark.cuda
@pytest.mark.parametrize(("family", "changed"), FAMILIES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_size_is_the_forecast_one_on_a_gpu(
    family: str, changed: dict[str, Any], dtype: str, tmp_path: Path
) -> None:
    check_forecasts(family, changed, tmp_path, "cuda", dtype)
