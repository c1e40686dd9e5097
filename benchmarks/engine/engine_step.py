"""The cost of an engine step without the model: 8 and 256 rows, a long queue, a snapshot.

Scheduling, the batch's tensors, sampling parameters, commit and text are included. Further figures add the
preparation of CPU attention; sampling, from a model with constant logits; and the graph path: filling the
fields of a graph, the changes to the block tables, and the copy to the device, with launches that compute
nothing. Rows with a grammar run one step ahead, as on a GPU.
"""

import json
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

import engine as package
from engine.api.cache_spec import LayerSpec
from engine.api.config import ModelConfig
from engine.api.events import Bus
from engine.api.params import Grammar, SamplingParams
from engine.attention.base import Attend
from engine.attention.torch_backend import TorchAttention
from engine.execution.cuda.arrivals import Wait
from engine.execution.cuda.graphs import DecodeSteps
from engine.execution.cuda.sampling_fields import SamplingFlags
from engine.execution.in_flight import InFlightStep
from engine.execution.protocol import Compilation
from engine.execution.results import SampledTokens
from engine.execution.runner import ModelRunner
from engine.grammar.grammars import Grammars
from engine.kv.pool import BlockPool
from engine.kv.store import KVStore
from engine.kv.tables import BlockTables
from engine.models.adapters.bank import AdapterBank
from engine.sampling.penalties import SeenTokens
from engine.scheduling.policy import choose
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.settings import SchedulerSettings
from engine.scheduling.step import Step
from engine.serving.engine import Engine
from engine.serving.info import EngineInfo
from engine.serving.limits import Limits
from engine.text.bare import BareTokenizer
from engine.text.tokenizer import Tokenizer
from minichat.bench.harness import LONGER, Bench

BUILT_IN = Path(package.__file__).parent / "pocket"
VOCAB = int(json.loads((BUILT_IN / "config.json").read_text())["vocab_size"])
SPEC = LayerSpec(heads=1, kv_heads=1, key_dim=8, value_dim=8, scale=1.0)
CONFIG = ModelConfig(family="empty", dtype="float32", hidden=1, layers=(SPEC,), vocab=VOCAB, max_context=4096)


class EmptyModel(torch.nn.Module):
    """A model that returns the same logits for any input."""

    config = CONFIG
    sinks: Mapping[int, Tensor] = MappingProxyType({})

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        return ids.unsqueeze(1)

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.zeros(len(hidden), VOCAB)

    @property
    def requantizable(self) -> None:
        return None


@dataclass
class NoWork:
    """A graph's attention work lists, always empty."""

    numbers: int = 0

    def holds(self, lengths: np.ndarray, contexts: np.ndarray) -> bool:
        return True

    def fill(self, numbers: np.ndarray, slots: np.ndarray, contexts: np.ndarray, lengths: np.ndarray) -> bool:
        return False

    def metadata(
        self,
        numbers: Tensor,
        tables: Tensor,
        slots: Tensor,
        contexts: Tensor,
        *,
        cut: bool,
        decodes: bool,
        others: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> None:
        return None


class HollowStage:
    """The stage of a graph without a model: every row samples the same token."""

    longest, vocab = 0, VOCAB  # launching a large step is no wait
    adapters: AdapterBank | None = None

    def work(self, tokens: int, *, pieces: bool = False, rows: int | None = None) -> NoWork:
        return NoWork()

    def start_compiling(self, steps: Mapping[Hashable, Callable[[], object]]) -> Compilation:
        raise AssertionError("nothing is compiled on a CPU")

    def logits(self, fields: Mapping[str, Tensor], last_ids: Tensor, metadata: Any) -> Tensor:
        return torch.zeros(len(fields["ids"]), VOCAB)

    def hidden(self, fields: Mapping[str, Tensor], last_ids: Tensor, metadata: Any, wait: Wait) -> Tensor:
        return fields["ids"].unsqueeze(1)

    def sample(
        self,
        logits: Tensor,
        fields: Mapping[str, Tensor],
        last_ids: Tensor,
        flags: SamplingFlags,
        seen: SeenTokens | None,
    ) -> tuple[Tensor, ...]:
        fields["tokens"].fill_(1)
        return ()


class Mute(ModelRunner):
    """A runner that prepares every step, runs nothing, and returns the same token for every row."""

    def launch(self, step: Step) -> InFlightStep:
        with self._inference:
            began = time.monotonic()
            self._tables.apply(step.tables)
            self._sampling_state.apply(step.sampling)
            rows = step.rows.sampling
            self._batches.build(step.rows, step.ids, step.single, self._sampling_state.last_ids)
            self._sampling_state.view(rows)
            tokens = SampledTokens(torch.ones(len(rows), dtype=torch.int64))
            return InFlightStep(rows, began, {}, sampled=tokens)


class Graphed(ModelRunner):
    """A runner whose decode steps take the path of CUDA graphs, with launches that compute nothing."""

    def _use_store(self) -> None:
        super()._use_store()
        self._steps = DecodeSteps(
            HollowStage(),
            tables=self._tables,
            block_size=self._block_size,
            last_ids=self._sampling_state.last_ids,
        )
        self.graphs = True


def empty_engine(
    rows: int,
    blocks: int,
    kind: type[ModelRunner] = Mute,
    *,
    depth: int = 0,
    grammars: Grammars | None = None,
) -> Engine:
    bus, tables = Bus(), BlockTables(rows, 256)
    pool = BlockPool(blocks, 16)
    rules = SchedulerSettings(step_tokens=8192, overlap=depth > 0)
    scheduler = Scheduler(pool=pool, tables=tables, policy=choose("fcfs"), rules=rules, emit=bus.emit)
    device = torch.device("cpu")
    store = KVStore([SPEC], blocks=1, block_size=16, host_blocks=0, dtype=torch.float32, device=device)
    runner = kind(
        model=EmptyModel(),
        store=store,
        attention=TorchAttention(),
        slots=rows,
        width=256,
        block_size=16,
        stop_ids=frozenset(),
        device=device,
    )
    return Engine(
        scheduler=scheduler,
        runner=runner,
        tokenizer=BareTokenizer(VOCAB),  # type: ignore[arg-type]  # it has everything that replies use
        limits=Limits(4096, VOCAB, 100_000),
        info=EngineInfo("empty", "float32", "cpu", "torch", "fcfs"),
        bus=bus,
        grammars=grammars,
    )


def fill(engine: Engine, requests: int, params: SamplingParams) -> None:
    for n in range(requests):
        engine.submit(range(64 + n % 16), params, lambda delta: None)


def steps(engine: Engine, count: int) -> list[float]:
    """Run `count` steps and return the seconds of each."""
    samples = []
    for _ in range(count):
        began = time.perf_counter()
        engine.step()
        samples.append(time.perf_counter() - began)
    return samples


def tokens_of(engine: Engine) -> int:
    return sum(len(each.tokens) for each in engine.scheduler.requests.values())


def run(bench: Bench, *, count: int = 500) -> None:
    torch.set_num_threads(1)
    greedy = SamplingParams(temperature=0)
    variants = {
        "": (Mute, greedy),
        ", greedy sampling": (ModelRunner, greedy),
        ", top-p sampling": (ModelRunner, SamplingParams(top_p=0.9, seed=1)),
        ", graph path": (Graphed, greedy),
        ", graph path, top-p and penalties": (
            Graphed,
            SamplingParams(top_p=0.9, seed=1, frequency_penalty=0.1),
        ),
    }
    for rows in (8, 256):
        for name, (kind, params) in variants.items():
            engine = empty_engine(rows, 100_000, kind)
            fill(engine, rows, params)
            steps(engine, 20)
            bench.note(f"one step, {rows} rows{name}", steps(engine, count), "s")

    tokenizer = Tokenizer.load(BUILT_IN)
    grammars = Grammars(tokenizer, VOCAB, tokenizer.stop_ids)
    ruled = replace(greedy, ignore_eos=True, grammar=Grammar("regex", "[a-z ]+"))
    for rows in (8, 256):
        engine = empty_engine(rows, 100_000, ModelRunner, depth=1, grammars=grammars)
        fill(engine, rows, ruled)
        steps(engine, 20)
        before, taken = tokens_of(engine), steps(engine, count)
        per_token = sum(taken) * rows / (tokens_of(engine) - before)
        bench.note(f"one token each, {rows} rows, a grammar, one step ahead", per_token, "s")

    few, many = (empty_engine(8, blocks=100_000) for _ in range(2))
    fill(few, 8, greedy)
    fill(many, 10_008, greedy)
    steps(few, 20), steps(many, 20)
    pairs = [(steps(few, 1)[0], steps(many, 1)[0]) for _ in range(count)]
    bench.note("10,000 waiting / none waiting, 8 rows", [with_ / without for without, with_ in pairs], LONGER)

    full = empty_engine(256, blocks=100_000)
    fill(full, 256, greedy)
    steps(full, 20)
    clock = [time.perf_counter() for _ in islice(iter(full.snapshot, None), 101)]
    bench.note("one snapshot, 256 rows, 100,000 blocks", [b - a for a, b in pairwise(clock)], "s")
