"""The gain of each technique of docs/how/ on a CPU, with the built-in model: `--only NAME ...` runs some.

Ratios are taken within a round, in which all contenders alternate. Figures in blocks are counted, not
timed: they are the same on any machine.
"""

import random
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch

from benchmarks.engine.engine_step import Mute, empty_engine, fill, steps
from engine.api.config import EngineConfig
from engine.api.events import Copied, Event
from engine.api.params import SamplingParams
from engine.execution.protocol import StepResult
from engine.sampling.rows import RowsView, SamplingRows
from engine.sampling.sampler import sample
from engine.scheduling.step import Step
from engine.serving.engine import Engine
from engine.start import start
from minichat.bench.harness import Bench, note_all, rounds
from minichat.bench.traffic import Reader, abort_all, ask, drain, peak_blocks, prompts


def pocket(**config: Any) -> Engine:
    plain: dict[str, Any] = {"blocks": 1024, "prefix_cache": False, "device": "cpu", "depth": 0, "seed": 0}
    return start(EngineConfig(**{"model": "pocket"} | plain | config))


def paging(bench: Bench) -> None:
    numbers, ids = random.Random(1), prompts()
    engine = pocket()
    sizes = [(numbers.randint(16, 256), numbers.randint(16, 256)) for _ in range(32)]
    for prompt, reply in sizes:
        ask(engine, ids, prompt, reply)
    peak, held, own, full = peak_blocks(engine)
    bench.note("blocks in use at the peak", peak, "blocks")
    bench.note(
        "cells of those blocks that hold a token", held / (peak * engine.scheduler.pool.block_size) * 100, "%"
    )
    bench.note("blocks reserved for each reply's own most", own, "blocks")
    bench.note("blocks reserved for the model's context", full, "blocks")
    bench.note("model's context reserved / paged", full / peak, "x")


def continuous_batching(bench: Bench) -> None:
    numbers, ids, engine = random.Random(2), prompts(), pocket(max_running=8)
    replies = [numbers.randint(8, 64) for _ in range(24)]

    def in_groups(size: int) -> int:
        for at in range(0, len(replies), size):
            for reply in replies[at : at + size]:
                ask(engine, ids, 32, reply)
            drain(engine)
        return sum(replies)

    calls = {
        "one after another": lambda: in_groups(1),
        "fixed batches of 8": lambda: in_groups(8),
        "continuous, 8 rows": lambda: in_groups(len(replies)),
    }
    bench.compare(calls, unit="tok/s")


def chunked_prefill(bench: Bench) -> None:
    """The longest stall of four running replies when a prompt of 1,500 tokens arrives."""
    ids = prompts()
    baseline: list[float] = []
    engines = {"whole": pocket(chunked_prefill=False)}
    engines |= {f"{budget} tokens a step": pocket(max_step_tokens=budget) for budget in (512, 64)}
    firsts: dict[str, list[float]] = {name: [] for name in engines}

    def arrival(name: str, engine: Engine) -> float:
        readers = [ask(engine, ids, 16, 400) for _ in range(4)]
        drain(engine, until=lambda: len(readers[0].times) > 10)
        baseline.append(median(readers[0].gaps))
        long = ask(engine, ids, 1500, 4)
        drain(engine, until=lambda: len(long.times) == 4)
        firsts[name].append(long.ttft)
        abort_all(engine)
        return max(max(reader.gaps[10:]) for reader in readers)

    stalls = rounds(bench, {name: partial(arrival, name, engine) for name, engine in engines.items()})
    bench.note("time between two tokens before it comes", baseline[len(engines) * bench.warmup :], "s")
    note_all(bench, "longest stall of a running reply, prompt", stalls)
    counted = {name: values[bench.warmup :] for name, values in firsts.items()}
    note_all(bench, "first token of the long prompt", counted)


def prefix_cache(bench: Bench) -> None:
    """A chat of 1,000 tokens continues with a message of 20."""
    ids = prompts()

    def second_turn(engine: Engine) -> float:
        before = [next(ids) for _ in range(1000)]
        reader = Reader()
        greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
        engine.submit(before, greedy, reader)
        drain(engine)
        after = Reader()
        engine.submit([*before, *reader.tokens, *(next(ids) for _ in range(20))], greedy, after)
        drain(engine)
        return after.ttft

    off, on = (pocket(prefix_cache=cached) for cached in (False, True))
    found = rounds(bench, {"without": lambda: second_turn(off), "with": lambda: second_turn(on)})
    note_all(bench, "first token of the second turn, prefix cache", found)


def copy_on_write(bench: Bench) -> None:
    """Eight replies of 16 tokens to one prompt of 1,000."""
    copied: list[Event] = []
    forked, separate = (pocket(max_step_tokens=8192) for _ in range(2))
    forked.bus.subscribe(lambda event: copied.append(event) if isinstance(event, Copied) else None)
    first = ask(forked, prompts(), 1000, 32)
    drain(forked, until=lambda: first.times)
    for _ in range(7):
        forked.fork(0, Reader())
    for _ in range(8):
        ask(separate, prompts(), 1000, 32)
    used = [most_blocks(engine) for engine in (separate, forked)]
    bench.note("blocks, 8 separate requests", used[0], "blocks")
    bench.note("blocks, 1 request and 7 forks", used[1], "blocks")
    bench.note("blocks copied", len(copied), "blocks")
    bench.note("separate / forked", used[0] / used[1], "x")


def most_blocks(engine: Engine) -> int:
    most = 0
    while engine.busy:
        engine.step()
        most = max(most, engine.scheduler.pool.in_use)
    return most


def preemption(bench: Bench) -> None:
    """One request is preempted. Then twelve requests, which need 216 blocks in the end, share 80."""
    ids = prompts()

    def pause(engine: Engine) -> float:
        reader = ask(engine, ids, 1000, 100)
        drain(engine, until=lambda: len(reader.times) > 10)
        engine.preempt(next(iter(engine.scheduler.requests)))
        drain(engine, until=lambda: len(reader.times) > 20)
        abort_all(engine)
        return max(reader.gaps)

    def workload(engine: Engine) -> float:
        began = time.perf_counter()
        for _ in range(12):
            ask(engine, ids, 192, 96)
        drain(engine)
        return time.perf_counter() - began

    lone = {
        "recompute": pocket(preemption="recompute"),
        "recompute, prefix cache on": pocket(preemption="recompute", prefix_cache=True),
        "swap": pocket(preemption="swap", host_blocks=128),
    }
    pauses = rounds(bench, {name: partial(pause, engine) for name, engine in lone.items()})
    note_all(bench, "pause of a request of 1,000 tokens", pauses)

    engines = {"room for all": pocket(blocks=256)}
    for how in ("recompute", "swap", "auto"):
        engines[how] = pocket(blocks=80, host_blocks=256, preemption=how)
    done = rounds(bench, {name: partial(workload, engine) for name, engine in engines.items()})
    note_all(bench, "12 requests done", done)
    runs = bench.warmup + bench.repeats
    bench.note("preemptions in one run", engines["auto"].scheduler.preemptions / runs, "times")
    computed = engines["auto"].scheduler.costs.recompute(1000) / 1000
    bench.note("measured: to compute a token of a prompt of 1,000", computed, "s")
    moved = engines["auto"].scheduler.transfers.tiers["host"].cost.round_trip(1) / 2
    bench.note("measured: to move a block", moved, "s")


class Device(Mute):
    """A simulated GPU: a step takes a fixed time, during which the host is free."""

    seconds = free_at = 0.0

    def launch(self, step: Step) -> tuple[int, float]:  # type: ignore[override]
        self.free_at = max(self.free_at, time.perf_counter()) + self.seconds
        return int(step.rows.samples.sum()), self.free_at

    def collect(self, handle: tuple[int, float]) -> StepResult:  # type: ignore[override]
        count, ready = handle
        time.sleep(max(0.0, ready - time.perf_counter()))
        return StepResult([7] * count)


def launch_and_commit(bench: Bench, device_ms: float = 2.0) -> None:
    """256 rows on a simulated device that only waits."""

    def at_depth(depth: int) -> Callable[[], float]:
        engine = empty_engine(256, blocks=100_000, kind=Device)
        engine.set_switch("overlap", depth > 0)
        engine.runner.seconds = device_ms / 1000  # type: ignore[attr-defined]
        fill(engine, 256, SamplingParams(temperature=0))
        steps(engine, 5)
        return lambda: median(steps(engine, 100))

    found = rounds(bench, {f"depth {depth}": at_depth(depth) for depth in (0, 1)})
    note_all(bench, f"one step, 256 rows, device {device_ms:g} ms", found)


def sampling(bench: Bench, vocab: int = 151_936) -> None:
    """Eight rows of a large vocabulary; top-p is also measured with the usual sort."""
    logits = torch.randn(8, vocab, generator=torch.Generator().manual_seed(0)) * 3

    def view(**params: Any) -> RowsView:
        rows = SamplingRows(8, vocab, torch.device("cpu"))
        for slot in range(8):
            rows.set(slot, SamplingParams(**params), seed=slot, end_ids=(), tokens=[0], prompt_len=1)
        return rows.view(range(8), [0] * 8)

    def sorted_nucleus() -> None:
        best, ids = logits.softmax(-1).sort(-1, descending=True)
        best[best.cumsum(-1) - best > 0.9] = 0
        ids.gather(1, torch.multinomial(best, 1))

    greedy, plain, nucleus = view(temperature=0), view(), view(top_p=0.9)

    def sampled(view: RowsView) -> Callable[[], None]:
        def call() -> None:
            sample(logits, view)

        return call

    calls = {
        "top-p 0.9, by sorting": sorted_nucleus,
        "top-p 0.9": sampled(nucleus),
        "temperature": sampled(plain),
        "greedy": sampled(greedy),
    }
    bench.compare(calls)


def latency_policy(bench: Bench) -> None:
    """An urgent request behind sixteen prompts."""
    ids = prompts()
    engines = {name: pocket(policy=name, max_step_tokens=256, max_running=16) for name in ("fcfs", "latency")}

    def urgent(engine: Engine) -> float:
        for _ in range(16):
            ask(engine, ids, 256, 2, deadline=30.0)
        reader = ask(engine, ids, 64, 2, deadline=0.1)
        drain(engine)
        return reader.ttft

    waits = rounds(bench, {name: partial(urgent, engine) for name, engine in engines.items()})
    note_all(bench, "first token of an urgent request", waits)


PARTS = {
    each.__name__: each
    for each in (
        paging,
        continuous_batching,
        chunked_prefill,
        prefix_cache,
        copy_on_write,
        preemption,
        launch_and_commit,
        sampling,
        latency_policy,
    )
}


def run(bench: Bench, *, only: tuple[str, ...] = tuple(PARTS)) -> None:
    torch.set_num_threads(1)
    for name in only:
        PARTS[name](bench)
