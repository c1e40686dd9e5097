"""The engine on several GPUs of one host, as ranks (`tp`) or stages (`pp`): steps and a mixed workload.

The shapes and workloads are those of `gpu.py`, and one GPU is measured, too. `check` compares the greedy
replies with transformers in float32 on the same weights, and with those of one GPU. `sums`: the exchanges
of ranks alone. `anatomy`: the kernels of a step on the first GPU, `mixed_anatomy`: those of steps of N.
`--quantization none fp8` measures each scheme of the weights.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import torch

from benchmarks.gpu.gpu import (
    BLOCKS,
    CONTEXT,
    GAP,
    LONG,
    SHORT,
    anatomy,
    labeled,
    largest_gap,
    mixed_anatomy,
    oracle,
)
from benchmarks.gpu.workload import finish, speeds_of_mixed
from engine.api.config import EngineConfig
from engine.serving.engine import Engine
from engine.start import start
from minichat.bench.harness import Bench
from minichat.bench.shapes import COMMON, SHAPES

PARTS = ("check", "decode", "mixed", "sums", "anatomy", "mixed_anatomy")
ONE = "1 GPU"
Replies = list[tuple[list[int], list[int]]]  # prompts and replies


def run(
    bench: Bench,
    *,
    shape: tuple[str, ...] = ("8B",),
    rows: tuple[int, ...] = (1, 8, 32, 128, 256),
    ranks: tuple[int, ...] = (2, 1),
    stages: tuple[int, ...] = (2,),
    both: tuple[int, ...] = (0,),
    quantization: tuple[str, ...] = ("none",),
    requests: int = 256,
    only: tuple[str, ...] = PARTS[:3],
) -> None:
    """`ranks`, `stages`: an engine for each; 0 ranks or 1 stage: none. `both`: ranks in each of two stages.

    `requests`: of the mixed workload.

    `check` needs the engine of one rank.
    """
    if not torch.cuda.is_available():
        raise SystemExit(f"gpu_ranks needs NVIDIA GPUs, and torch {torch.__version__} sees none")
    if "sums" in only:
        for more in ((), ("--group",), ("--others",)):
            subprocess.run([sys.executable, "-m", "benchmarks.gpu.peer_sums", *more], check=True)
    contenders = [(1, count) for count in stages if count > 1] + [(count, 1) for count in ranks if count]
    contenders += [(count, 2) for count in both if count]
    for name, scheme in product(shape, quantization) if set(only) - {"sums"} else ():
        # Replies from quantized weights are not checked: their rounding is not an error.
        parts = only if scheme == "none" else tuple(each for each in only if each != "check")
        measure(bench, name, scheme, contenders, rows, requests, parts)


def measure(
    bench: Bench,
    name: str,
    scheme: str,
    contenders: Sequence[tuple[int, int]],
    rows: tuple[int, ...],
    requests: int,
    only: tuple[str, ...],
) -> None:
    """Measure an engine for each number of ranks and stages, with weights in this scheme."""
    replies: dict[str, Replies] = {}
    for tp, pp in contenders:
        with started(bench, name, scheme, tp, pp) as engine:
            kind = f"{tp} GPU" + "s" * (tp > 1)
            if pp > 1:
                kind = f"{pp} stages" + f" of {tp}" * (tp > 1)
            label = f"{labeled(name, scheme, 'none')}, {kind}"
            if "check" in only:
                replies[kind] = greedy(engine)
                if kind == ONE:
                    compare(bench, name, engine, replies)
            if "decode" in only:
                for each in rows:
                    bench.note(f"{label}, D, B={each}", step_times(engine, each, bench.repeats), "ms")
                    shares(bench, f"{label}, D, B={each}", engine)
            if "anatomy" in only:
                anatomy(bench, label, engine, rows)
            if "mixed" in only:
                bench.note(f"{label}, N", speeds_of_mixed(engine, bench.repeats, requests), "tok/s")
                shares(bench, f"{label}, N", engine)
            if "mixed_anatomy" in only:
                mixed_anatomy(bench, label, engine, rows)


def shares(bench: Bench, label: str, engine: Engine) -> None:
    """Note the share of the last steps' time in which each stage had nothing to do, or ranks exchanged."""
    shot = engine.snapshot()
    for each in sorted(shot.ranks, key=lambda each: each.stage or 0):
        if each.stage is not None:
            bench.note(f"{label}, bubble of stage {each.stage + 1}", 100 * each.bubble, "%")
    if shot.joining:
        bench.note(f"{label}, in exchanges", [100 * each.joining for each in shot.ranks], "%")
        bench.note(f"{label}, sent by a rank", shot.traffic / 1e9, "GB/s")


@contextmanager
def started(bench: Bench, name: str, scheme: str, tp: int, pp: int) -> Iterator[Engine]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(COMMON | SHAPES[name]))
        began = time.perf_counter()
        engine = start(
            EngineConfig(
                model=folder, dummy_weights=True, max_context=CONTEXT, prefix_cache=False, blocks=BLOCKS,
                host_blocks=0, seed=0, tp=tp, pp=pp, quantization=scheme,
            )
        )  # fmt: skip
        finish(engine, [[1, 2, 3]], [2])
        bench.note(
            f"{labeled(name, scheme, 'none')}, tp {tp}, pp {pp}, from start to the first reply",
            time.perf_counter() - began,
            "s",
        )
        yield engine
        engine.ranks.close()
    del engine
    torch.cuda.empty_cache()


def step_times(engine: Engine, rows: int, repeats: int) -> list[float]:
    """Milliseconds of a step, as in gpu.py."""
    draw = random.Random(rows)

    def seconds(count: int) -> float:
        prompts = [[draw.randrange(10000) for _ in range(512)] for _ in range(rows)]
        began = time.perf_counter()
        finish(engine, prompts, [count] * rows)
        return time.perf_counter() - began

    seconds(LONG)  # compiles kernels and captures graphs
    return [(seconds(LONG) - seconds(SHORT)) / (LONG - SHORT) * 1e3 for _ in range(repeats)]


def greedy(engine: Engine) -> Replies:
    draw, found = random.Random(1), Replies()
    for count in (1, 3, 8, 20, 40):
        prompts = [[draw.randrange(10000) for _ in range(draw.randint(2, 700))] for _ in range(count)]
        tokens = finish(engine, prompts, [12] * count, temperature=0.0)
        found += list(zip(prompts, tokens, strict=True))[:4]
    return found


def compare(bench: Bench, name: str, engine: Engine, replies: dict[str, Replies]) -> None:
    """Check the replies by the logits of transformers, with the weights of an engine of one rank."""
    gaps = {}
    with oracle(name, engine) as theirs, torch.inference_mode():
        for count, found in replies.items():
            logits = [_logits(theirs, *each) for each in found]
            gaps[count] = largest_gap(logits, [torch.tensor(reply, device="cuda") for _, reply in found])
            bench.note(f"{name}, {count}, largest gap to transformers' argmax", gaps[count], "logit")
    for count, found in replies.items():
        same = [ours == one for (_, ours), (_, one) in zip(found, replies[ONE], strict=True)]
        bench.note(f"{name}, {count}, replies equal to those of one GPU", sum(same) / len(same), "")
        if not gaps[count] < max(GAP, 1.5 * gaps[ONE]):
            raise SystemExit(f"{name}, {count}: wrong tokens, {gaps[count]:.2f} below the likeliest")


def _logits(model: object, prompt: Sequence[int], reply: Sequence[int]) -> torch.Tensor:
    ids = torch.tensor([[*prompt, *reply]], device="cuda")
    found: torch.Tensor = model(ids).logits[0, len(prompt) - 1 : -1].float()  # type: ignore[operator]
    return found
