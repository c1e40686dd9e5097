"""`engine_step` of two trees, alternating, a process for each tree: 60 tokens of every row at a time.

`--other` is the root of the other tree; an older tree needs an `engine_step` with the graph path.
"""

from benchmarks.alternating import HERE, Tree, alternate, root_of
from minichat.bench.harness import Bench

TOKENS = 60  # of each row in a turn

WORKER = """
import time
import torch
try:
    from benchmarks.engine import engine_step as bench
except ImportError:  # an older tree
    from benchmarks import engine_step as bench

torch.set_num_threads(1)
GREEDY = bench.SamplingParams(temperature=0)
TOP_P = bench.SamplingParams(top_p=0.9, seed=1, frequency_penalty=0.1)
KINDS = {
    "scheduling": (bench.Mute, GREEDY),
    "greedy": (bench.ModelRunner, GREEDY),
    "graph path": (bench.Graphed, GREEDY),
    "graph path, top-p and penalties": (bench.Graphed, TOP_P),
}
text = bench.Tokenizer.load(bench.BUILT_IN)
grammars = bench.Grammars(text, bench.VOCAB, text.stop_ids)

def opened(kind, rows):
    if kind == "grammar":
        engine = bench.empty_engine(rows, 100_000, bench.ModelRunner, depth=1, grammars=grammars)
        rule = bench.Grammar("regex", "[a-z ]+")
        bench.fill(engine, rows, bench.replace(GREEDY, ignore_eos=True, grammar=rule))
    else:
        engine = bench.empty_engine(rows, 100_000, KINDS[kind][0])
        bench.fill(engine, rows, KINDS[kind][1])
    bench.steps(engine, 20)
    return engine

def microseconds(kind, rows):
    engine = opened(kind, rows)
    before, began = bench.tokens_of(engine), time.perf_counter()
    while bench.tokens_of(engine) - before < TOKENS * rows:
        engine.step()
    return (time.perf_counter() - began) / TOKENS * 1e6

emit(0)
for line in sys.stdin:
    emit(microseconds(*json.loads(line)))
"""


def run(bench: Bench, *, other: str = "", rows: tuple[int, ...] = (8, 256)) -> None:
    kinds = ("scheduling", "greedy", "graph path", "graph path, top-p and penalties", "grammar")
    questions = {f"{kind}, {count} rows": ((kind, count), "µs") for count in rows for kind in kinds}
    program = f"TOKENS = {TOKENS}\n{WORKER}"
    with Tree(root_of(other), program) as old, Tree(HERE, program) as new:
        alternate(bench, {"other": old, "this": new}, questions)
