"""The bytes that a step reads, and the measured speed of the device."""

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from engine.api.cache_spec import CacheSpec, LayerSpec, StateSpec
from engine.api.speeds import Reads, Speeds
from engine.execution import traffic
from engine.execution.runner import ModelRunner
from engine.execution.traffic import measure, weights_read
from engine.kv.store import KVStore
from engine.quant.base import Scheme
from engine.quant.linear import Linear, parameter
from engine.quant.registry import named
from tests.quant.changing import switch
from tests.runner.small import GREEDY, ask, drain, engine_on, make


class Calls(TorchFunctionMode):
    """Records the torch functions called."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: set[object] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.functions.add(func)
        return func(*args, **(kwargs or {}))


class Model(nn.Module):
    """A model of an embedding, a layer, and a head that may share the embedding's matrix."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embed = parameter(10, 4, dtype=torch.float32)
        self.layer = Linear.empty(4, 4, bias=True, dtype=torch.float32)
        self.head = Linear(self.embed if tied else parameter(10, 4, dtype=torch.float32))
        self.register_buffer("rope", torch.zeros(100, 4))


def test_an_embedding_is_read_whole_only_if_it_is_the_head() -> None:
    layer, table = 4 * (16 + 4), 4 * 40
    assert weights_read(Model(tied=True)) == layer + table
    assert weights_read(Model(tied=False)) == layer + table  # of the head; the embedding is only looked up
    model = Model(tied=False)
    model.words = nn.Embedding(1000, 4)
    assert weights_read(model) == layer + table


def test_the_cache_is_read_up_to_the_window() -> None:
    full = LayerSpec(heads=4, kv_heads=2, key_dim=8, value_dim=8, scale=1.0)
    near = LayerSpec(heads=4, kv_heads=2, key_dim=8, value_dim=8, scale=1.0, window=10)
    store = KVStore(
        [full, near, near], blocks=1, block_size=16, host_blocks=0, dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )  # fmt: skip
    reads = Reads(0, store.read_per_token(), store.operations_per_pair())
    assert reads.cache == ((0, 64), (10, 128))
    assert reads.of_cache([(0, 100.0), (10, 14.0)]) == 100 * 64 + 14 * 128
    assert reads.attention == ((0, 2 * 4 * 16), (10, 2 * 2 * 4 * 16))
    assert reads.of_attention([(0, 100.0), (10, 14.0)]) == 100 * 128 + 14 * 256
    assert store.state_traffic() == 0


def test_recurrent_states_are_read_and_written() -> None:
    state = StateSpec(heads=3, key_heads=1, key_dim=8, value_dim=4, taps=3)
    store = KVStore(
        [CacheSpec.of_state(state)] * 2, blocks=1, block_size=16, host_blocks=0, dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )  # fmt: skip
    assert store.state_traffic() == 2 * 2 * 4 * (3 * 8 * 4 + 2 * (2 * 8 + 3 * 4))
    assert store.state_operations() == 2 * state.operations


def test_the_operations_with_recurrent_states_are_counted(tmp_path: Path, llama: Path) -> None:
    make("qwen3_next", tmp_path)
    engine = engine_on(tmp_path)
    states = [each.state for each in engine.runner.store.specs if each.state is not None]
    assert states and all(each.replaces for each in states), "the delta rule"
    assert engine.snapshot().reads.recurrence == sum(each.operations for each in states) > 0
    assert engine_on(llama).snapshot().reads.recurrence == 0


def test_a_snapshot_reports_what_a_step_reads(llama: Path) -> None:
    reads = engine_on(llama).snapshot().reads
    assert reads.weights > 0
    assert (reads.experts, reads.chosen) == (0, 1.0) and reads.of_step(1) == reads.weights
    assert reads.of_cache([(0, 1.0)]) > 0


def test_the_weights_of_experts_are_known(tmp_path: Path) -> None:
    make("qwen3_moe", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    experts = config["num_hidden_layers"] * config["num_local_experts"]
    weights = 3 * experts * config["moe_intermediate_size"] * config["hidden_size"]
    reads = engine_on(tmp_path).snapshot().reads
    assert reads.experts == 4 * weights < reads.weights
    assert reads.chosen == config["num_experts_per_tok"] / config["num_local_experts"] < 1
    packed = engine_on(tmp_path, quantization="int8").snapshot().reads
    assert weights < packed.experts < 2 * weights and packed.chosen == reads.chosen


def test_a_device_is_measured() -> None:
    speeds = measure(torch.device("cpu"), torch.float32, 2**20)
    assert speeds.read > 1e6
    assert speeds.multiply > 1e6


@pytest.mark.parametrize("scheme", ["none", "int8", "int4", "fp32"])
def test_operations_count_in_every_scheme(llama: Path, scheme: str) -> None:
    config = json.loads((llama / "config.json").read_text())
    hidden, width, heads = (
        config[name] for name in ("hidden_size", "intermediate_size", "num_key_value_heads")
    )
    keys = heads * hidden // config["num_attention_heads"]
    layer = 2 * hidden * (hidden + keys) + 3 * hidden * width
    weights = config["num_hidden_layers"] * layer + config["vocab_size"] * hidden
    reads = engine_on(llama, quantization=scheme).snapshot().reads
    assert (reads.products, reads.head) == (2 * weights, 2 * config["vocab_size"] * hidden)


def test_the_measured_product_is_that_of_the_layers() -> None:
    with Calls() as calls:
        measure(torch.device("cpu"), torch.bfloat16, 2**20)
    assert linear in calls.functions
    assert not calls.functions & {torch.Tensor.matmul, torch.Tensor.__matmul__, torch.matmul, torch.mm}


def test_each_scheme_is_measured_once(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def product(scheme: Scheme, weight: Tensor, bias: Tensor | None) -> nn.Module:
        made.append(scheme.name)
        return Linear(nn.Parameter(weight, requires_grad=False))

    monkeypatch.setattr(traffic, "_SECONDS", 0.0)
    monkeypatch.setattr(traffic, "make_product", product)
    engine = engine_on(llama)
    for scheme in ("int8", "none", "int8", "none"):  # at last as it was: other tests share the model
        switch(engine, scheme)
        for _ in range(2):
            assert engine.runner.speeds().multiply > 0
    assert made == ["int8", "none"]


def test_a_device_is_measured_again_if_steps_ran_beside_the_measurement(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = [Speeds(2.0, 5.0), Speeds(3.0, 4.0), Speeds(9.0, 9.0)]
    counts = iter([1, 7, 8, 8])  # steps before and after each measurement
    monkeypatch.setattr(traffic, "measure", lambda *given: measured.pop(0))
    engine, meter = engine_on(llama), traffic.SpeedMeter(torch.device("cpu"))
    found = [meter.read(engine.runner.model, torch.float32, None, lambda: next(counts)) for _ in range(3)]
    assert found == [Speeds(2.0, 5.0), Speeds(3.0, 5.0), Speeds(3.0, 5.0)]


def test_a_busy_device_is_measured_a_few_times_only(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time takes something from the steps."""
    steps, measured = itertools.count(), list[int]()

    def measure(*given: Any) -> Speeds:
        measured.append(1)
        return Speeds(1.0, 1.0)

    monkeypatch.setattr(traffic, "measure", measure)
    engine, meter = engine_on(llama), traffic.SpeedMeter(torch.device("cpu"))
    for _ in range(9):
        meter.read(engine.runner.model, torch.float32, None, lambda: next(steps))
    assert len(measured) == 4


def test_steps_are_counted(llama: Path) -> None:
    engine = engine_on(llama)
    assert isinstance(engine.runner, ModelRunner)
    before = engine.runner.splitter.begun
    ask(engine, [1, 2, 3], GREEDY.changed(max_tokens=3))
    drain(engine)
    assert engine.runner.splitter.begun == before + 3


def test_a_gpu_whose_limit_is_not_known_has_none() -> None:
    weight = torch.empty(4, 4, device="meta")
    assert traffic._product(named("fp8"), weight) is None, "it multiplies faster in 8 bits"
    assert traffic._product(named("int4"), weight) is not None, "it multiplies in the activations' dtype"


def test_a_slow_first_run_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program may take the processor for longer than the measurement."""
    times = iter([0.2, 0.01, 0.01, 0.01, 0.01, 0.01])
    monkeypatch.setattr(traffic, "_on_cpu", lambda work: time.sleep(taken := next(times)) or taken)
    assert traffic._best(torch.device("cpu"), lambda: None) == 0.01
