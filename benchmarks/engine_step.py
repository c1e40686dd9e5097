"""What a step of the engine costs besides the model: 8 and 256 rows, a long waiting line, a snapshot.

Planning, the batch's tensors, how rows are sampled, commit and text are all there. Further figures add what
the CPU's attention prepares once a step, and sampling itself, from a model that always says the same.
"""

import time
from collections.abc import Mapping
from itertools import islice, pairwise
from types import MappingProxyType

import torch
from torch import Tensor

from benchmarks.harness import Bench
from engine.attention.base import Attend
from engine.attention.torch_backend import TorchAttention
from engine.cache.pool import BlockPool
from engine.cache.store import KVStore
from engine.cache.tables import BlockTables
from engine.config import LayerSpec, ModelConfig
from engine.core import Engine
from engine.events import Bus
from engine.limits import Limits
from engine.observe import Facts
from engine.params import SamplingParams
from engine.runner.results import Drawn
from engine.runner.runner import Launched, ModelRunner
from engine.scheduling.plan import Plan
from engine.scheduling.policy import choose
from engine.scheduling.scheduler import Rules, Scheduler
from engine.text.bare import BareTokenizer

VOCAB = 512
SPEC = LayerSpec(heads=1, kv_heads=1, key_dim=8, value_dim=8, scale=1.0)
CONFIG = ModelConfig(family="empty", dtype="float32", hidden=1, layers=(SPEC,), vocab=VOCAB, max_context=4096)


class EmptyModel(torch.nn.Module):
    """Says the same whatever it is asked."""

    config = CONFIG
    sinks: Mapping[int, Tensor] = MappingProxyType({})

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        return ids.unsqueeze(1)

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.zeros(len(hidden), VOCAB)


class Mute(ModelRunner):
    """Prepares every step, and then runs nothing: the same token comes from everywhere."""

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Launched:
        began = time.monotonic()
        rows = [row for row in plan.rows if row.samples]
        self._batches.build(plan, self._drawing.last_ids)
        self._drawing.view(rows)
        drawn = Drawn(torch.ones(len(rows), dtype=torch.int64))
        return Launched(rows, drawn, None, began, lambda: 0.0)


def empty_engine(rows: int, blocks: int, kind: type[ModelRunner] = Mute) -> Engine:
    bus, tables = Bus(), BlockTables(rows, 256)
    pool, host = BlockPool(blocks, 16), BlockPool(0, 16)
    rules = Rules(step_tokens=8192)
    scheduler = Scheduler(
        pool=pool, host=host, tables=tables, policy=choose("fcfs"), rules=rules, emit=bus.emit
    )
    device = torch.device("cpu")
    store = KVStore([SPEC], blocks=1, block_size=16, host_blocks=0, dtype=torch.float32, device=device)
    runner = kind(
        model=EmptyModel(),
        store=store,
        attention=TorchAttention(),
        requests=scheduler.requests,
        tables=tables,
        block_size=16,
        stop_ids=frozenset(),
        device=device,
    )
    return Engine(
        scheduler=scheduler,
        runner=runner,
        tokenizer=BareTokenizer(VOCAB),  # type: ignore[arg-type]  # it has all that replies need
        limits=Limits(4096, VOCAB, 100_000),
        facts=Facts("empty", "float32", "cpu", "torch", "fcfs"),
        bus=bus,
    )


def fill(engine: Engine, requests: int, params: SamplingParams) -> None:
    for n in range(requests):
        engine.submit(range(64 + n % 16), params, lambda delta: None)


def steps(engine: Engine, count: int) -> list[float]:
    """Seconds of each of so many steps in which all rows decode."""
    samples = []
    for _ in range(count):
        began = time.perf_counter()
        engine.step()
        samples.append(time.perf_counter() - began)
    return samples


def run(bench: Bench, *, count: int = 500) -> None:
    torch.set_num_threads(1)
    greedy = SamplingParams(temperature=0)
    variants = {
        "": (Mute, greedy),
        ", greedy sampling": (ModelRunner, greedy),
        ", top-p sampling": (ModelRunner, SamplingParams(top_p=0.9, seed=1)),
    }
    for rows in (8, 256):
        for name, (kind, params) in variants.items():
            engine = empty_engine(rows, 100_000, kind)
            fill(engine, rows, params)
            steps(engine, 20)
            bench.note(f"one step, {rows} rows{name}", steps(engine, count), "s")

    few, many = (empty_engine(8, blocks=100_000) for _ in range(2))
    fill(few, 8, greedy)
    fill(many, 10_008, greedy)
    steps(few, 20), steps(many, 20)
    pairs = [(steps(few, 1)[0], steps(many, 1)[0]) for _ in range(count)]
    bench.note("10,000 waiting / none waiting, 8 rows", [with_ / without for without, with_ in pairs], "x")

    full = empty_engine(256, blocks=100_000)
    fill(full, 256, greedy)
    steps(full, 20)
    clock = [time.perf_counter() for _ in islice(iter(full.snapshot, None), 101)]
    bench.note("one snapshot, 256 rows, 100,000 blocks", [b - a for a, b in pairwise(clock)], "s")
