"""The benchmarks for GPUs, as far as a CPU runs them."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, Self

import pytest
import torch
from rich.progress import Progress

from benchmarks.gpu import gpu, gpu_attention, gpu_peers, gpu_products, gpu_ranks, gpu_turns, workload
from benchmarks.gpu.limits import bytes_of_run, bytes_of_step
from engine.api.cache_spec import LayerSpec
from engine.api.config import EngineConfig
from engine.api.params import SamplingParams
from engine.execution.protocol import StepKind
from engine.kernels.triton.attention import tiles
from engine.models.layers.gpu import GpuKernels
from engine.serving.engine import Engine
from engine.start import start
from minichat.bench.harness import Bench
from tests.engine.ledger import ledger_engine
from tests.kernels.launches import recorded
from tests.models.tiny import CONFIG, write_config
from tests.outputs import Output


def test_the_time_of_a_step_is_not_that_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that may draft waits for its last token, so every second call only commits."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    ticks = iter(range(10**6))
    monkeypatch.setattr(gpu.time, "perf_counter", lambda: float(next(ticks)))
    engine = ledger_engine(depth=1)
    waiting = SamplingParams(max_tokens=200, ignore_eos=True, speculate="ngram")
    engine.submit([1, 2, 3], waiting, Output())
    for _ in range(20):
        engine.step()
    engine.scheduler.speculator.prices.wants_plain = lambda rows: False  # type: ignore[method-assign]
    steps, calls = engine.scheduler.step, 60
    spent = gpu.steps_take(engine, calls)
    assert engine.scheduler.step - steps == calls // 2
    assert spent == pytest.approx(1 / (calls // 2))


def test_the_mixed_workload_has_a_graph_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an engine that has been idle: otherwise steps take larger graphs for a while."""
    done: list[Any] = []

    class Compiled:
        def wait(self) -> None:
            done.append("compiled")

    class Runner:
        graph_sizes = (1, 2, 4)

        def start_compiling(self, kinds: list[StepKind]) -> list[Compiled]:
            done.append(kinds)
            return [Compiled()]

        def capture(self, kinds: list[StepKind]) -> None:
            done.append(kinds)

    class Idle:
        runner = Runner()

        def snapshot(self) -> SimpleNamespace:
            return SimpleNamespace(ranks=(), joining=0.0)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(workload, "finish", lambda engine, prompts, counts: done.append(len(prompts)))
    monkeypatch.setattr(gpu_ranks, "started", lambda *_: nullcontext(Idle()))
    bench = Bench(warmup=0, repeats=2, progress=Progress(disable=True), keep=lambda _: None)
    gpu_ranks.measure(bench, "8B", "none", [(2, 1)], (), 20, ("mixed",))
    kinds = [StepKind(rows, long=long) for rows in (1, 2, 4) for long in (False, True)]
    assert done == [kinds, "compiled", kinds, 20, 20, 20]
    assert [(each.name, each.samples) for each in bench.figures] == [("8B, 2 GPUs, N", 2)]


def test_each_step_is_beside_its_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for name, value in {"PROMPT": 12, "SHORT": 2, "LONG": 4, "copy_speeds": lambda bench: [2.0]}.items():
        monkeypatch.setattr(gpu, name, value)
    write_config(tmp_path, vocab_size=10_000)
    engine = start(EngineConfig(model=str(tmp_path), dummy_weights=True, device="cpu", blocks=64))
    bench = Bench(warmup=0, repeats=1, progress=Progress(disable=True), keep=lambda _: None)
    gpu.decode(bench, "tiny", engine, (1, 3))
    expected = [f"tiny, {what}, B={rows}" for rows in (1, 3) for what in ("D", "limit by bytes")]
    assert [each.name for each in bench.figures] == ["a device copy, read and written", *expected]
    limits = [each.median for each in bench.figures if "limit" in each.name]
    assert limits == pytest.approx([bytes_of_step(engine.runner.model, rows, 14) / 2e9 for rows in (1, 3)])


def test_a_tile_is_fixed() -> None:
    spec, limits = (
        LayerSpec(heads=16, kv_heads=8, key_dim=128, value_dim=128, scale=1.0),
        tiles.GpuLimits(room=227 * 1024, overlaps=True),
    )
    chosen = tiles.for_tokens(spec, 4, limits, 2)
    with gpu_attention.fixed((64, 4, 3, 132)):
        given = tiles.for_tokens(spec, 4, limits, 2)
    assert (given.keys, given.warps, given.stages, given.programs) == (64, 4, 3, 132) != chosen
    with gpu_attention.fixed((0,)):
        assert tiles.for_tokens(spec, 4, limits, 2) == chosen


def test_compressed_weights_and_caches_are_timed_but_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    @contextmanager
    def started(bench: Bench, name: str, **config: str) -> Iterator[None]:
        opened.append(config)
        yield

    def part(bench: Bench, name: str, engine: None, rows: tuple[int, ...]) -> None:
        ran.append(name)

    ran = list[str]()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "started", started)
    monkeypatch.setattr(gpu, "PARTS", {"check": part, "mixed": part})
    bench = Bench(warmup=0, repeats=1, progress=Progress(disable=True), keep=lambda _: None)
    gpu.run(bench, shape=("8B",), quantization=("none", "fp8"), kv=("none", "fp8"), only=("check", "mixed"))
    assert [tuple(each.values()) for each in opened] == [
        ("none", "none"), ("none", "fp8"), ("fp8", "none"), ("fp8", "fp8"),
    ]  # fmt: skip
    assert ran == ["8B", "8B", "8B, KV fp8", "8B, weights fp8", "8B, weights fp8, KV fp8"]


def test_an_engine_is_gone_when_the_next_one_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a GPU may not hold both."""
    loaded, left, kept = [], [], list[str]()

    def load(config: EngineConfig) -> Engine:
        left.extend(each() for each in loaded)
        engine = start(replace(config, device="cpu", blocks=16, max_context=64))
        loaded.append(weakref.ref(engine.runner.model))
        return engine

    monkeypatch.setattr(gpu, "start", load)
    monkeypatch.setitem(gpu.EVERY, "tiny", CONFIG)
    monkeypatch.setattr(gpu, "PARTS", {"mixed": lambda *_: None})
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    for each in ("freeze", "unfreeze"):  # of all that the tests have loaded, which would take seconds
        monkeypatch.setattr(gc, each, partial(kept.append, each))
    bench = Bench(warmup=0, repeats=1, progress=Progress(disable=True), keep=lambda _: None)
    for _ in range(2):
        gpu.measured(bench, "tiny", "none", "none", ["mixed"], ())
    assert len(loaded) == 2 and left == [None]
    assert kept == ["unfreeze", "freeze"] * 2, "what is frozen is not collected"


def test_a_shape_without_continuous_batching_is_generated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def transformers(model: Any) -> NoReturn:
        raise RuntimeError("latents")

    for name, value in {"DEVICE": "cpu", "FEW": (1, 2), "transformers": transformers}.items():
        monkeypatch.setattr(gpu_peers, name, value)
    monkeypatch.setattr(gpu_peers, "prompts", lambda rows: [[1, 2, 3]] * rows)
    monkeypatch.setitem(gpu_peers.EVERY, "tiny", {**CONFIG, "head_dim": 8})
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    bench = Bench(warmup=0, repeats=1, progress=Progress(), keep=lambda _: None)
    gpu_peers.transformers_alone(bench, "tiny", (1, 2))
    assert [each.name for each in bench.figures] == [
        f"tiny, D, B={rows}, transformers, generate" for rows in (1, 2)
    ]
    assert "latents" in capsys.readouterr().out


def test_both_trees_have_the_same_schemes(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = []

    class FakeTree:
        started = 1.0

        def __init__(self, root: Path, program: str) -> None:
            programs.append(program)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def ask(self, question: int) -> float:
            return 2.0

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_turns, "Tree", FakeTree)
    bench = Bench(warmup=0, repeats=1, progress=Progress(disable=True), keep=lambda _: None)
    gpu_turns.run(bench, other=".", shape=("8B",), rows=(4,), quantization="fp8", only=("decode",))
    assert programs[0] == programs[1]
    found: dict[str, object] = {}
    exec(programs[0].strip().partition("\n")[0], found)
    assert (found["SCHEMES"], found["SHAPE"]) == ({"quantization": "fp8"}, "8B")
    assert [each.name for each in bench.figures][-1] == "8B, weights fp8, D, B=4, this / other"


def test_a_product_is_launched_as_a_step_does() -> None:
    """Of fp8 also with rows that are rounded already: without the kernel that rounds them."""
    kernels, meta = GpuKernels(tiles.GpuLimits(room=227 * 1024, overlaps=True)), torch.device("meta")
    assert gpu_products.sizes("8B")["gate_up"] == (28672, 4096)
    for scheme in ("none", "fp8", "int8", "int4"):
        product = kernels.product(gpu_products.modules_of(scheme, 256, 512, meta)[0])
        for rows in (1, 8, 300):
            with recorded() as record:
                given = torch.empty(rows, 512, dtype=torch.bfloat16, device=meta)
                ways = gpu_products.launches(product, given, kernels)
                assert list(ways) == ["", " already rounded"][: 1 + (scheme == "fp8" and rows > 1)]
                record.lines.clear()
                outs = [launch(product) for launch in ways.values()]
                assert {(each.shape[1:], each.dtype) for each in outs} <= {
                    ((rows, 256), torch.bfloat16), ((rows, 256), torch.float32),
                }  # fmt: skip
            assert sum(line.startswith("_quantize_fp8") for line in record.lines) == len(ways) - 1
            assert ("launch_pdl=True" in "".join(record.lines)) == (rows <= 32)


def test_the_mixed_workload_is_beside_its_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(gpu, "copy_speeds", lambda bench: [2.0])
    monkeypatch.setattr(workload, "capture_all", lambda engine: None)
    for module in (gpu, workload):
        monkeypatch.setattr(module, "drawn", lambda requests=256: ([[1] * 9, [2] * 5], [4, 7]))
    write_config(tmp_path, vocab_size=10_000)
    engine = start(EngineConfig(model=str(tmp_path), dummy_weights=True, device="cpu", blocks=64))
    bench = Bench(warmup=0, repeats=2, progress=Progress(disable=True), keep=lambda _: None)
    gpu.mixed(bench, "tiny", engine)
    speeds, copy, limit = bench.figures
    assert (speeds.name, speeds.samples, limit.name) == ("tiny, N", 2, "tiny, limit by bytes, N")
    assert copy.median == 2.0
    assert limit.median == pytest.approx(11 / bytes_of_run(engine.runner.model, [9, 5], [4, 7]) * 2e12)
