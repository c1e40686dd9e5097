"""Two trees on one GPU in turns: decode steps and the mixed workload of `gpu`, a process for each tree.

Both engines stay open, and one works while the other rests, so a machine that gets slower or faster changes
both. `D` is timed here as 256 steps in a row, behind one prefill; `N` is the same as in `gpu`. `--other` is
the root of the other tree.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Self

import torch

from benchmarks.harness import Bench

BLOCKS = 20_000  # a cache of each engine: two of them, and two models, fit one GPU
STEPS = 256

WORKER = """
import json, random, sys, tempfile, time
import torch
try:
    from benchmarks.gpu import gpu
except ImportError:  # an older tree
    from benchmarks import gpu

def emit(value):
    print(json.dumps(value), file=out, flush=True)

def decode(rows):
    draw = random.Random(rows)
    params = gpu.SamplingParams(temperature=0.6, max_tokens=STEPS + 60, ignore_eos=True)
    for _ in range(rows):
        engine.submit([draw.randrange(10000) for _ in range(512)], params, gpu.Heard())
    while engine.scheduler.waiting or any(each.generated < 16 for each in engine.scheduler.running):
        engine.step()
    taken = gpu.steps_take(engine, STEPS) * 1e3
    while engine.busy:
        engine.step()
    return taken

def mixed():
    prompts, counts = gpu.drawn()
    torch.cuda.synchronize()
    began = time.perf_counter()
    gpu.finish(engine, prompts, counts)
    return sum(counts) / (time.perf_counter() - began)

out, sys.stdout = sys.stdout, sys.stderr
gpu.BLOCKS, STEPS = BLOCKS, STEPS
engine, seconds = gpu.opened(SHAPE, tempfile.mkdtemp())
emit(seconds)
for line in sys.stdin:
    rows = json.loads(line)
    emit(decode(rows) if rows else mixed())
"""


class Tree:
    """An engine of one tree in a process of its own."""

    def __init__(self, root: Path, shape: str) -> None:
        constants = f"BLOCKS, STEPS, SHAPE = {BLOCKS}, {STEPS}, {shape!r}\n"
        self._process = subprocess.Popen(
            [sys.executable, "-c", constants + WORKER],
            cwd=root, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.started = self._read()

    def decode(self, rows: int) -> float:
        """Milliseconds of a step."""
        return self._ask(rows)

    def mixed(self) -> float:
        """Tokens a second."""
        return self._ask(0)

    def _ask(self, rows: int) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(rows) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> float:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise SystemExit(f"the engine of a tree ended with exit code {self._process.wait()}")
        return float(json.loads(line))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def run(
    bench: Bench,
    *,
    other: str = "",
    shape: tuple[str, ...] = ("0.6B", "8B"),
    rows: tuple[int, ...] = (1, 8, 32, 128, 256),
    only: tuple[str, ...] = ("decode", "mixed"),
) -> None:
    if not torch.cuda.is_available():
        raise SystemExit(f"gpu_turns needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    if not (Path(other) / "benchmarks").is_dir():
        raise SystemExit(f"--other {other!r} is not the root of a tree of this project")
    here = Path(__file__).resolve().parents[2]
    for name in shape:
        with Tree(Path(other), name) as old, Tree(here, name) as new:
            in_turns(
                bench, name, {"other": old, "this": new}, rows if "decode" in only else (), "mixed" in only
            )


def in_turns(bench: Bench, name: str, trees: dict[str, Tree], rows: tuple[int, ...], mixed: bool) -> None:
    for which, tree in trees.items():
        bench.note(f"{name}, start to first reply, {which}", tree.started, "s")
    samples: dict[tuple[str, str], list[float]] = {}
    for turn in range(1 + bench.repeats):  # the first compiles and records
        for which, tree in list(trees.items())[:: 1 if turn % 2 else -1]:
            found = {f"D, B={count}": tree.decode(count) for count in rows}
            if mixed:
                found["N"] = tree.mixed()
            for figure, value in found.items():
                samples.setdefault((figure, which), []).append(value)
    for (figure, which), values in samples.items():
        bench.note(f"{name}, {figure}, {which}", values[1:], "tok/s" if figure == "N" else "ms")
    for figure in dict.fromkeys(figure for figure, _ in samples):
        pairs = zip(samples[figure, "this"][1:], samples[figure, "other"][1:], strict=True)
        bench.note(f"{name}, {figure}, this / other", [this / that for this, that in pairs], "x")
