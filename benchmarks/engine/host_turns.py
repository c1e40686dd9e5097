"""What the host does for a decode step on a GPU, in turns with another tree. No GPU is needed.

Scheduling, the fields of the graph with real attention work, sampling parameters, commit and text are as on a
GPU, one step ahead. Replaying the graph does nothing, and there are no events. A turn is the fastest fifth of
its steps, since other programs only make steps longer. The number of calls of Python and C functions does not
depend on the machine. `--other` is the root of the other tree, which may be as old as 22 November 2026.
"""

from benchmarks.alternating import HERE, Tree, alternate, root_of
from minichat.bench.harness import Bench

WORKER = """
import statistics
import time
from types import SimpleNamespace

import torch

SHAPE = dict(heads=16, kv_heads=8, key_dim=128, value_dim=128, scale=1.0)
CPU, SHARED = torch.device("cpu"), 227 * 1024
torch.set_num_threads(1)

try:
    from benchmarks.engine import engine_step as bench
    from engine.api.cache_spec import LayerSpec
    from engine.attention import graph_work as attention
    from engine.execution.cuda import graphs
    from engine.execution.cuda.recording import Recording
    from engine.kernels.triton.attention.tiles import GpuLimits

    attention.gpu = lambda device: GpuLimits(SHARED, overlaps=True, hoppers=132)

    class Stage(bench.HollowStage):
        compilations = 0

        def work(self, tokens, *, pieces=False, rows=None):
            limits = dict(pieces=pieces, rows=rows)
            return attention.GraphWork([LayerSpec(**SHAPE)], tokens, torch.bfloat16, CPU, **limits)

    def engine_with(rows):
        return bench.empty_engine(rows, 100_000, bench.ModelRunner, depth=1)

    def use_graphs(runner):
        where = dict(tables=runner._tables, last_ids=runner._sampling_state.last_ids)
        runner._stage, runner.graphs, runner._compiler._begun = Stage(), True, True
        runner._steps = graphs.DecodeSteps(runner._stage, block_size=runner._block_size, **where)
        runner._steps._recorder = SimpleNamespace(captures=0, used=True, full=False)
except ImportError:  # the tree of 22 November
    from benchmarks import engine_step as bench
    from engine.attention import triton_backend as attention
    from engine.config import LayerSpec
    from engine.kernels.attention.tiles import Gpu
    from engine.runner import graphs
    from engine.runner.graphs import Recording

    attention.gpu = lambda device: Gpu(SHARED, overlaps=True)
    attention.StandingWork.prepared = lambda *given, **more: None

    class Stage:
        rehearse = None

        def work(self, rows):
            return attention.StandingWork([LayerSpec(**SHAPE)], rows, torch.bfloat16, CPU)

    def engine_with(rows):
        engine = bench.empty_engine(rows, 100_000, bench.ModelRunner)
        engine.depth = 1
        return engine

    def use_graphs(runner):
        where = dict(tables=runner._tables, last_ids=runner._drawing.last_ids, requests=runner._requests)
        runner._steps, runner.graphs = graphs.DecodeSteps(Stage(), block_size=16, **where), True

Recording.run = lambda self: ()
PARAMS = bench.SamplingParams(temperature=0.6, seed=1, ignore_eos=True)

def opened(rows):
    engine = engine_with(rows)
    for n in range(rows):
        engine.submit([1 + n % 100] * (512 + n % 16), PARAMS, lambda delta: None)
    while not all(each.generated for each in engine.scheduler.requests.values()):
        engine.step()
    use_graphs(engine.runner)
    bench.steps(engine, 20)
    return engine

def calls(rows, steps=160):  # as many steps as lets every row fill ten blocks
    engine, count = opened(rows), 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    for _ in range(steps):
        engine.step()
    sys.setprofile(None)
    return count / steps

open_engines = {}

def microseconds(rows, steps=120):
    engine, left = open_engines.pop(rows, (None, 0))
    if left < steps:
        engine, left = opened(rows), 2000
    open_engines[rows] = engine, left - steps
    taken = sorted(bench.steps(engine, steps))
    return statistics.mean(taken[: len(taken) // 5]) * 1e6

emit(0)
for line in sys.stdin:
    what, rows = json.loads(line)
    emit(calls(rows) if what == "calls" else microseconds(rows))
"""


def run(bench: Bench, *, other: str = "", rows: tuple[int, ...] = (1, 8, 32, 128, 256)) -> None:
    with Tree(root_of(other), WORKER) as old, Tree(HERE, WORKER) as new:
        trees = {"other": old, "this": new}
        for count in rows:
            for name, tree in trees.items():
                bench.note(f"calls of a step, {count} rows, {name}", tree.ask(("calls", count)), "")
        alternate(bench, trees, {f"{count} rows": (("time", count), "µs") for count in rows})
