"""Two trees alternating on one GPU: decode steps and the mixed workload of `gpu`, a process for each tree.

Both engines stay open. `D` is timed here as 256 steps in a row. They begin at the same mean context, which
does not depend on how many prompts fit in a step. `N` is the same as in `gpu`. `--other` is the root of the
other tree; both have the weights and the cache in the same schemes.
"""

import torch

from benchmarks.alternating import HERE, Tree, alternate, root_of
from benchmarks.gpu.gpu import labeled
from engine.api.cache_spec import KvSchemeName
from minichat.bench.harness import Bench

BLOCKS = 20_000  # a cache of each engine: two of them, and two models, fit one GPU
STEPS = 256
BEFORE = 40  # mean number of tokens that rows have generated before
PARTS = ("decode", "mixed")

WORKER = """
import gc, random, tempfile, time
import torch
try:
    from benchmarks.gpu import gpu
except ImportError:  # an older tree
    from benchmarks import gpu

def decode(rows):
    draw = random.Random(rows)
    params = gpu.SamplingParams(temperature=0.6, max_tokens=STEPS + 2 * BEFORE, ignore_eos=True)
    for _ in range(rows):
        engine.submit([draw.randrange(10000) for _ in range(512)], params, gpu.Heard())
    while engine.scheduler.waiting or sum(row.generated for row in engine.scheduler.running) < BEFORE * rows:
        engine.step()
    taken = gpu.steps_take(engine, STEPS) * 1e3
    while engine.busy:
        engine.step()
    return taken

def mixed():
    getattr(gpu, "capture_all", lambda engine: None)(engine)  # an older tree
    prompts, counts = gpu.drawn()
    torch.cuda.synchronize()
    began = time.perf_counter()
    gpu.finish(engine, prompts, counts)
    return sum(counts) / (time.perf_counter() - began)

gpu.BLOCKS = BLOCKS
engine, seconds = gpu.opened(SHAPE, tempfile.mkdtemp(), **SCHEMES)
gc.collect()
gc.freeze()  # like a server's engine: a full collection takes 0.1 s
emit(seconds)
for line in sys.stdin:
    rows = json.loads(line)
    emit(decode(rows) if rows else mixed())
"""


def run(
    bench: Bench,
    *,
    other: str = "",
    shape: tuple[str, ...] = ("0.6B", "8B"),
    rows: tuple[int, ...] = (1, 8, 32, 128, 256),
    quantization: str = "none",
    kv: KvSchemeName = "none",
    only: tuple[str, ...] = PARTS,
) -> None:
    if not torch.cuda.is_available():
        raise SystemExit(f"gpu_turns needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    root = root_of(other)
    questions = {f"D, B={count}": (count, "ms") for count in rows if "decode" in only}
    if "mixed" in only:
        questions["N"] = (0, "tok/s")
    schemes = {"quantization": quantization, "kv_scheme": kv}
    given = BLOCKS, STEPS, BEFORE, {name: scheme for name, scheme in schemes.items() if scheme != "none"}
    for each in shape:
        program = f"BLOCKS, STEPS, BEFORE, SCHEMES, SHAPE = *{given}, {each!r}\n{WORKER}"
        name = labeled(each, quantization, kv)
        with Tree(root, program) as old, Tree(HERE, program) as new:
            for which, tree in {"other": old, "this": new}.items():
                bench.note(f"{name}, start to first reply, {which}", tree.started, "s")
            alternate(bench, {"other": old, "this": new}, questions, f"{name}, ")
