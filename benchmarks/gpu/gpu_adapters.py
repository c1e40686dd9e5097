"""LoRA adapters on a GPU: a decode step whose rows mix two of them with none, and the time to load or switch.

Random adapters on the queries and values (PEFT's default) and on all linear layers. Steps without adapters,
with one, and with a third of the rows for each of two adapters and none take turns on one engine; the
percentage is the extra time over the step without.
"""

import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch

from benchmarks.engine.adapters import TARGETS, drop, random_adapter
from benchmarks.gpu.gpu import opened, steps_take
from engine.api.params import SamplingParams
from engine.serving.engine import Engine
from minichat.bench.harness import Bench

MIXES = {"no adapter": ("",), "one": ("a",), "two and none": ("a", "b", "")}
PROMPT, STEPS, TURNS = 64, 40, 3


def run(
    bench: Bench, *, shape: tuple[str, ...] = ("8B",), rows: tuple[int, ...] = (1, 8, 32), rank: int = 16
) -> None:
    if not torch.cuda.is_available():
        raise SystemExit(f"gpu_adapters needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    for name in shape:
        with tempfile.TemporaryDirectory() as place:
            engine, _ = opened(name, place)
            for what, modules in TARGETS.items():
                folders = {
                    each: random_adapter(
                        Path(place) / f"{each}-{len(modules)}", Path(place), modules, rank, seed
                    )
                    for seed, each in enumerate("ab")
                }
                measured(bench, engine, folders, rows, f"{name}, rank {rank}, {what}")
        del engine
        torch.cuda.empty_cache()


def measured(bench: Bench, engine: Engine, folders: dict[str, Path], rows: Sequence[int], what: str) -> None:
    loads = [loading(engine, each, folder) for each, folder in folders.items()]
    bench.note(f"{what}, load an adapter, then a first token, compiling", loads[0], "s")
    bench.note(f"{what}, load another one, then a first token", loads[1], "s")
    for each in folders:  # the graph of this prompt is there
        bench.note(f"{what}, switch to the loaded {each}, a first token", first_token(engine, each), "s")
    for count in rows:
        mixes = {mix: names for mix, names in MIXES.items() if count >= len(names)}
        found: dict[str, list[float]] = {mix: [] for mix in mixes}
        for turn in range(TURNS + 1):
            for mix, names in mixes.items():
                seconds = step(engine, [names[at % len(names)] for at in range(count)])
                if turn:  # the first one compiles kernels and captures graphs
                    found[mix].append(seconds * 1e3)
        plain = median(found["no adapter"])
        for mix, times in found.items():
            bench.note(f"{what}, B={count}, a step, {mix}", times, "ms")
            if mix != "no adapter":
                more = [100 * (each / plain - 1) for each in times]
                bench.note(f"{what}, B={count}, {mix}, more than without", more, "%")
    for each in folders:
        engine.drop_adapter(each)


def step(engine: Engine, adapters: Sequence[str]) -> float:
    """Seconds of a decode step with a row for each of these."""
    draw = random.Random(len(adapters))
    params = SamplingParams(temperature=0.6, max_tokens=4 * STEPS, ignore_eos=True)
    for adapter in adapters:
        engine.submit([draw.randrange(3000) for _ in range(PROMPT)], params, drop, adapter=adapter)
    while engine.scheduler.waiting or any(each.generated < 10 for each in engine.scheduler.running):
        engine.step()
    seconds = steps_take(engine, STEPS)
    for id in tuple(engine.scheduler.requests):
        engine.abort(id)
    while engine.busy:
        engine.step()
    return seconds


def loading(engine: Engine, name: str, folder: Path) -> float:
    """Seconds to load an adapter and compute a token with it."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    engine.load_adapter(name, folder)
    return time.perf_counter() - began + first_token(engine, name)


def first_token(engine: Engine, name: str) -> float:
    """Seconds of a prompt of 32 tokens."""
    began = time.perf_counter()
    engine.submit(range(50, 82), SamplingParams(temperature=0, max_tokens=1), drop, adapter=name)
    while engine.busy:
        engine.step()
    return time.perf_counter() - began
