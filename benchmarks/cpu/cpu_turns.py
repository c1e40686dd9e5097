"""Decode steps on a CPU in turns with another tree: processor time of the fastest quarter of a turn's steps.

`--other`: the root of the other tree. `--model`: a folder, or the built-in one; without it, a random Llama of
`--parameters` millions in bfloat16, as in engine_cpu.
"""

import tempfile
from pathlib import Path

from benchmarks.alternating import HERE, Tree, alternate, root_of
from benchmarks.cpu.engine_cpu import SHAPES, random_llama
from minichat.bench.harness import Bench

WORKER = """
import statistics
import time
import torch
from engine.api.config import EngineConfig
from engine.api.params import SamplingParams
from engine.start import start

torch.set_num_threads(THREADS)
config = EngineConfig(model=MODEL, quantization=SCHEME, threads=THREADS, blocks=512, dtype="bfloat16")
engine = start(config)
generator = torch.Generator().manual_seed(0)
params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)

def milliseconds(rows):
    engine.scheduler.pool.forget_all()
    for prompt in torch.randint(5, 3000, (rows, 32), generator=generator).tolist():
        engine.submit(prompt, params, lambda delta: None)
    taken = []
    while engine.busy:
        began = time.process_time()
        engine.step()
        taken.append(time.process_time() - began)
    taken = sorted(taken[3:])
    return 1e3 * statistics.mean(taken[: max(1, len(taken) // 4)])

emit(0)
for line in sys.stdin:
    emit(milliseconds(json.loads(line)))
"""


def run(
    bench: Bench,
    *,
    other: str = "",
    model: str = "",
    parameters: int = 335,
    quantization: tuple[str, ...] = ("none", "int8", "int4"),
    rows: tuple[int, ...] = (1, 8),
    tokens: int = 24,
    threads: int = 1,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if not model:
            random_llama(Path(folder), SHAPES[parameters], "bfloat16")
        for scheme in quantization:
            given = {"MODEL": model or folder, "SCHEME": scheme, "TOKENS": tokens, "THREADS": threads}
            program = "\n".join(f"{name} = {value!r}" for name, value in given.items()) + WORKER
            with Tree(root_of(other), program) as old, Tree(HERE, program) as new:
                questions = {f"{count} at once": (count, "ms") for count in rows}
                alternate(bench, {"other": old, "this": new}, questions, f"{scheme}, ")
