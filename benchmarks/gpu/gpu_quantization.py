"""Quantization schemes on a GPU: decode steps in CUDA graphs, and the time of a change between schemes.

Shapes as in gpu.py, with random weights: n requests with prompts of 512 tokens, and the milliseconds of a
step, averaged over STEPS steps after compilation and capture. A change generates the weights of each layer
again and converts them; no file is read. With `--files` the weights are first written to files, and `--model`
is a checkpoint: these files are read at each change.
"""

import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch

from benchmarks.gpu.gpu import BLOCKS, CONTEXT, started
from benchmarks.gpu.workload import Heard, finish
from engine.api.config import EngineConfig
from engine.api.params import SamplingParams
from engine.execution.runner import ModelRunner
from engine.serving.engine import Engine
from engine.start import start
from minichat.bench.harness import Bench
from minichat.bench.shapes import COMMON, SHAPES
from minichat.bench.written import write

SCHEMES = ("none", "int8", "fp8", "int4", "int4-32", "int4-128", "bnb-nf4")
WARM, STEPS = 24, 64


def run(
    bench: Bench,
    *,
    shape: tuple[str, ...] = ("0.6B", "8B"),
    schemes: tuple[str, ...] = SCHEMES,
    rows: tuple[int, ...] = (1, 4, 16, 64),
    model: str = "",
    files: bool = False,
) -> None:
    if not torch.cuda.is_available():
        raise SystemExit(f"gpu_quantization needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    for name in (model,) if model else shape:
        with opened(bench, name, model, files=files) as engine:
            for scheme in schemes:
                if scheme != engine.snapshot().quantization:
                    bench.note(f"{name}, to {scheme}", changed(engine, scheme), "s")
                bench.note(f"{name}, {scheme}, weights", weights(engine) / 2**30, "GiB")
                for count in rows:
                    bench.note(f"{name}, {scheme}, B={count}", step_times(bench, engine, count), "ms")
            if len(schemes) > 1:
                bench.note(f"{name}, back to {schemes[0]}", changed(engine, schemes[0]), "s")


def opened(bench: Bench, name: str, model: str, *, files: bool) -> AbstractContextManager[Engine]:
    if model:
        return read(bench, name, model)
    return written(bench, name) if files else started(bench, name)


@contextmanager
def written(bench: Bench, name: str) -> Iterator[Engine]:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), COMMON | SHAPES[name])
        with read(bench, name, folder) as engine:
            yield engine


@contextmanager
def read(bench: Bench, name: str, model: str) -> Iterator[Engine]:
    began = time.perf_counter()
    engine = start(
        EngineConfig(
            model=model, max_context=CONTEXT, prefix_cache=False, blocks=BLOCKS, host_blocks=0, seed=0
        )
    )
    finish(engine, [[1, 2, 3]], [2])
    bench.note(f"{name}, from start to the first reply", time.perf_counter() - began, "s")
    yield engine


def weights(engine: Engine) -> int:
    """The bytes of the weights on the GPU."""
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    tensors = {id(each): each.nbytes for each in (*runner.model.parameters(), *runner.model.buffers())}
    return sum(tensors.values())


def changed(engine: Engine, scheme: str) -> float:
    """Change the scheme and return the seconds it took."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    engine.set_quantization(scheme)
    while engine.snapshot().quantization != scheme:
        engine.step()
        if (change := engine.snapshot().change) is not None and change.error:
            raise SystemExit(f"the change to {scheme} failed: {change.error}")
    torch.cuda.synchronize()
    return time.perf_counter() - began


def step_times(bench: Bench, engine: Engine, rows: int) -> list[float]:
    """Milliseconds of a step, one sample per repeat."""
    draw, samples = random.Random(rows), []
    params = SamplingParams(temperature=0.6, max_tokens=WARM + STEPS * bench.repeats + 8, ignore_eos=True)
    for _ in range(rows):
        engine.submit([draw.randrange(10000) for _ in range(512)], params, Heard())
    while engine.scheduler.waiting or any(each.generated < WARM for each in engine.scheduler.running):
        engine.step()
    for _ in range(bench.repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(STEPS):
            engine.step()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - began) / STEPS * 1e3)
    while engine.busy:
        engine.step()
    return samples
