"""Adapters on a GPU: the fused forward against torch, and replies in graphs and outside of them."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.api.config import EngineConfig
from engine.api.params import SamplingParams
from engine.attention.triton_backend import TritonAttention
from engine.execution.changes import UseGraphs
from engine.kv.store import KVLayer
from engine.models.adapters.bank import AdapterBank
from engine.models.adapters.matrices import AdapterMatrices
from engine.serving.engine import Engine
from engine.start import start
from tests.kernels import adapted
from tests.kernels.cases import make_long_case
from tests.kernels.steps.test_stage_gpu import decoder
from tests.models.lora import random_adapter
from tests.outputs import Output
from tests.runner.small import make

GPU = torch.device("cuda")


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 8, 17, 32, 64, 200])
def test_the_fused_forward_equals_the_decoder(rows: int, dtype: torch.dtype) -> None:
    """A third of the rows has each of two adapters and none; with 17 rows there is a prompt."""
    compare(rows, dtype)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [1, 8, 32])
def test_products_in_one_launch_with_their_terms(
    rows: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of large weights are."""
    from engine.kernels.triton.gemm import gemm_with_terms

    monkeypatch.setattr(gemm_with_terms, "LONG", 0)
    compare(rows, dtype)


def compare(rows: int, dtype: torch.dtype) -> None:
    from engine.models.fused import FusedDecoder

    model = decoder(dtype)
    spec = model.config.layers[0]
    lengths = [(1, 40 + 13 * n % 900) for n in range(rows)] + ([(70, 200)] if rows == 17 else [])
    case = make_long_case(spec, lengths, block_size=16, dtype=dtype, device=GPU)
    keys, values = (each.nan_to_num(0.0) for each in (case.layer.keys, case.layer.values))
    layers = [KVLayer(spec, keys.clone(), values.clone()) for _ in model.config.layers]
    others = [KVLayer(spec, keys.clone(), values.clone()) for _ in model.config.layers]
    backend, batch = TritonAttention(), case.batch
    ids = torch.arange(len(batch.positions), device=GPU) * 7
    bank, matrices = AdapterBank(model, GPU), AdapterMatrices(GPU)
    for number, rank in ((1, 8), (2, 20)):
        files = adapted.random_adapter(model.config, rank, number, dtype)
        bank.put(number, files)
        matrices.put(number, files)
    given = np.arange(len(lengths)) % 3 + (len(lengths) == 1), np.array([count for count, _ in lengths])
    by_torch, by_kernels = (each.of_step(*given, adapted.here(GPU)) for each in (matrices, bank))
    with torch.inference_mode():

        def run(adapters: object) -> torch.Tensor:
            prepared = backend.prepare(batch)
            return model.forward(
                ids, batch.positions, lambda n, q, k, v: backend.attend(q, k, v, others[n], prepared),
                adapters=adapters,  # type: ignore[arg-type]
            )  # fmt: skip

        without, expected = run(None), run(by_torch)
        fused = FusedDecoder(model, layers, backend)
        x = model.embedded(ids)
        got = fused.forward(x, batch.positions, batch.places, backend.prepare(batch), by_kernels)
    limit = {torch.bfloat16: 3e-2, torch.float16: 5e-3, torch.float32: 1e-5}[dtype]
    size = expected.float().norm(dim=1)
    error = (got.float() - expected.float()).norm(dim=1) / size
    assert error.max() < limit, f"relative error {error.max():.1e} at token {error.argmax()}"
    changed = ((without.float() - expected.float()).norm(dim=1) / size).cpu().numpy()
    has_one = np.repeat(given[0], given[1]) > 0
    assert (changed[has_one] > 0.1).all() and (changed[~has_one] == 0).all(), "the adapters show"
    assert fused.plain == {}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    folder = tmp_path_factory.mktemp("adapters")
    (base := folder / "base").mkdir()
    make("qwen3", base)
    return base, {
        "a": random_adapter(folder / "a", base),
        "b": random_adapter(folder / "b", base, seed=1, r=24, target_modules=["q_proj", "up_proj"]),
    }


def engine_on(base: Path, device: str, *, graphs: bool = True) -> Engine:
    config = EngineConfig(
        model=str(base), device=device, blocks=24, host_blocks=8, max_running=9, max_step_tokens=64, depth=1,
        seed=0,
    )  # fmt: skip
    engine = start(config)
    if not graphs:
        engine.runner.apply(UseGraphs(False))
    return engine


def replies(engine: Engine, folders: dict[str, Path]) -> list[list[int]]:
    """Adapters are loaded while the first requests run; one is dropped and loaded again at the end."""
    draw = random.Random(3)
    outputs: list[Output] = []

    def ask(names: tuple[str, ...]) -> Iterator[None]:
        for number in range(15):
            outputs.append(Output())
            prompt = [draw.randrange(3, 90) for _ in range(draw.randint(1, 60))]
            params = SamplingParams(temperature=0.0, max_tokens=10 + number, ignore_eos=True)
            engine.submit(prompt, params, outputs[-1], adapter=names[number % len(names)])
            yield

    def steps(asked: Iterator[None]) -> None:
        for _ in asked:
            for _ in range(draw.randint(0, 3)):
                engine.step()
                engine.scheduler.check()

    steps(ask(("",)))
    for name, folder in folders.items():
        engine.load_adapter(name, folder)
    steps(ask(("a", "", "b")))
    while engine.busy:
        engine.step()
    engine.drop_adapter("a")
    engine.load_adapter("c", folders["a"])
    steps(ask(("b", "c", "")))
    while engine.busy:
        engine.step()
    assert not any(each.error for each in outputs), [each.error for each in outputs]
    return [each.tokens for each in outputs]


@pytest.mark.soak
def test_replies_differ_by_adapter(world: tuple[Path, dict[str, Path]]) -> None:
    """What the other test compares, on a CPU."""
    base, folders = world
    without = replies(engine_on(base, "cpu"), dict.fromkeys(folders, folders["b"]))
    found = replies(engine_on(base, "cpu"), folders)
    assert [a == b for a, b in zip(found[:15], without[:15], strict=True)] == [True] * 15
    assert sum(a != b for a, b in zip(found[15:], without[15:], strict=True)) >= 8


@pytest.mark.cuda
@pytest.mark.parametrize("graphs", [True, False])
def test_replies_equal_those_of_a_cpu(world: tuple[Path, dict[str, Path]], *, graphs: bool) -> None:
    """In float32. Rows with two adapters and none join, leave and are preempted."""
    base, folders = world
    expected = replies(engine_on(base, "cpu"), folders)
    found = replies(engine_on(base, "cuda", graphs=graphs), folders)
    same = sum(a == b for a, b in zip(found, expected, strict=True))
    assert same >= 43, f"{same} of 45 replies are the same"  # one may depend on the last bit of a number


@pytest.mark.cuda
def test_loading_and_dropping_keeps_the_graphs(world: tuple[Path, dict[str, Path]]) -> None:
    """An adapter that takes another's place runs in the graphs that were captured for that one."""
    base, folders = world
    engine = engine_on(base, "cuda")

    def reply(name: str, seed: int) -> list[int]:
        output = Output()
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
        engine.submit([seed, 5, 7], params, output, adapter=name)
        while engine.busy:
            engine.step()
        return output.tokens

    def captures() -> int:
        steps = engine.runner._steps  # type: ignore[attr-defined]
        return int(steps.captures)

    engine.load_adapter("b", folders["b"])
    engine.load_adapter("a", folders["a"])
    first, before = [reply(name, 4) for name in ("a", "b")], captures()
    assert first[0] != first[1]
    engine.drop_adapter("a")
    engine.load_adapter("again", folders["a"])
    assert reply("again", 4) == first[0]
    assert captures() == before
