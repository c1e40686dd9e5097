"""Decode steps on a CPU with the compiled products beside those with torch's: two engines, in turns.

Processor time of a step after the prompts, the median of each turn. `--model`: a folder, or the built-in one;
without it, a random Llama of `--parameters` millions in bfloat16, as in engine_cpu.
"""

import statistics
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks.cpu.engine_cpu import PROMPT, SHAPES, random_llama
from engine.api.config import EngineConfig
from engine.api.params import SamplingParams
from engine.serving.engine import Engine
from engine.start import start
from minichat.bench.harness import Bench

SETTLED = 3  # steps of a turn that are not counted


def run(
    bench: Bench,
    *,
    model: str = "",
    parameters: int = 335,
    quantization: tuple[str, ...] = ("none", "int8", "int4"),
    rows: tuple[int, ...] = (1, 8),
    tokens: int = 24,
    threads: int = 1,
) -> None:
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        if not model:
            random_llama(Path(folder), SHAPES[parameters], "bfloat16")
        for scheme in quantization:
            config = EngineConfig(
                model=model or folder, quantization=scheme, threads=threads, blocks=512, dtype="bfloat16"
            )
            with patch("engine.kernels.cpu.compiled.product.why_not", lambda bits, dtype: "for comparison"):
                theirs = start(config)
            ours = start(config)
            for count in rows:
                compare(bench, f"{scheme}, {count} at once", theirs, ours, count, tokens)
            ours.close()
            theirs.close()


def compare(bench: Bench, label: str, theirs: Engine, ours: Engine, rows: int, tokens: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    found = []
    for turn in range(-bench.warmup, bench.repeats):
        prompts = torch.randint(5, 3000, (rows, PROMPT), generator=generator).tolist()
        both = tuple(step_time(engine, prompts, tokens) for engine in (theirs, ours))
        if turn >= 0:
            found.append(both)
    bench.note(f"{label}, torch's products", [1e3 * each for each, _ in found], "ms")
    bench.note(f"{label}, compiled", [1e3 * each for _, each in found], "ms")
    bench.note(f"{label}, speed of compiled", [first / second for first, second in found], "x")


def step_time(engine: Engine, prompts: list[list[int]], tokens: int) -> float:
    """The median processor time of a decode step, in seconds."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    engine.scheduler.pool.forget_all()
    for prompt in prompts:
        engine.submit(prompt, params, lambda delta: None)
    times = []
    while engine.busy:
        began = time.process_time()
        engine.step()
        times.append(time.process_time() - began)
    return statistics.median(times[SETTLED:])
