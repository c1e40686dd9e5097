"""Prompts and drafts on a GPU: first tokens, decodes beside long prompts, and steps that verify drafts.

Shapes and random weights as in `gpu`. `first`: the time to the first token of one prompt. `beside`: the time
between tokens of 64 replies, while prompts of 8,192 tokens arrive, by the prompt tokens in a step, and with
those that `max_slowdown` chooses. `verify`: a step of rows with drafts that are all rejected, against a step
without drafts.
"""

import json
import random
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks.gpu.gpu import decoding, steps_take
from benchmarks.gpu.workload import finish
from engine.api.config import EngineConfig
from engine.api.events import Delta
from engine.api.params import SamplingParams
from engine.api.request import Request
from engine.scheduling.step import Drafts, Step
from engine.serving.engine import Engine
from engine.speculation.speculator import Speculator
from engine.start import start
from minichat.bench.harness import LONGER, Bench
from minichat.bench.shapes import COMMON, SHAPES

PARTS = ("first", "beside", "verify")
TOKENS = 2**18  # in the cache
LONGEST = 131072
ARRIVING = 8192  # tokens of each prompt that arrives
READERS, ALONE, TOGETHER, MOST_SECONDS = 64, 100, 200, 4.0
LEARNING, RULED = 600, 400  # steps with `max_slowdown` before it is measured, and then
STEPS = 60


class Clocked:
    """A sink that notes when each token arrives."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, delta: Delta) -> None:
        if delta.error:
            raise SystemExit(f"a request failed: {delta.error}")
        self.times += [time.perf_counter()] * len(delta.tokens)


def run(
    bench: Bench,
    *,
    shape: tuple[str, ...] = ("8B",),
    lengths: tuple[int, ...] = (1024, 8192, 32768, LONGEST),
    chunks: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048, 8192),
    slowdowns: tuple[float, ...] = (1.5,),
    rows: tuple[int, ...] = (1, 4, 16),
    verified: tuple[int, ...] = (2, 4, 8),
    attention: str = "auto",
    block_size: int = 16,
    only: tuple[str, ...] = PARTS,
) -> None:
    if not torch.cuda.is_available():
        raise SystemExit(f"gpu_prompts needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    for name in shape:
        with opened(name, attention, block_size) as engine:
            for part in only:
                if part == "first":
                    first(bench, name, engine, lengths)
                elif part == "beside":
                    beside(bench, name, engine, chunks, slowdowns)
                else:
                    verify(bench, name, engine, rows, verified)


@contextmanager
def opened(name: str, attention: str, block_size: int) -> Iterator[Engine]:
    with tempfile.TemporaryDirectory() as folder:
        settings = COMMON | SHAPES[name] | {"max_position_embeddings": LONGEST}
        (Path(folder) / "config.json").write_text(json.dumps(settings))
        config = EngineConfig(
            model=folder,
            dummy_weights=True,
            max_context=LONGEST,
            prefix_cache=False,
            attention=attention,
            block_size=block_size,
            blocks=TOKENS // block_size,
            host_blocks=0,
            seed=0,
        )
        engine = start(config)
        finish(engine, [[1, 2, 3]], [2])
        yield engine
    del engine
    torch.cuda.empty_cache()


def prompt_of(tokens: int, draw: random.Random) -> list[int]:
    return [draw.randrange(10000) for _ in range(tokens)]


def first(bench: Bench, name: str, engine: Engine, lengths: tuple[int, ...]) -> None:
    draw = random.Random(0)
    for length in lengths:
        prompt, samples = prompt_of(min(length, LONGEST - 16), draw), []
        for _ in range(1 + min(bench.repeats, 3)):  # the first one compiles
            began = time.perf_counter()
            finish(engine, [prompt], [1])
            samples.append((time.perf_counter() - began) * 1e3)
        seconds = bench.note(f"{name}, first token, prompt of {length}", samples[1:], "ms").median / 1e3
        bench.note(f"{name}, prompt of {length}, tokens a second", len(prompt) / seconds, "tok/s")


def beside(
    bench: Bench, name: str, engine: Engine, chunks: tuple[int, ...], slowdowns: tuple[float, ...]
) -> None:
    """Each limit, then each chunk, against the decodes alone just before and after: their contexts grow."""
    draw, scheduler = random.Random(0), engine.scheduler
    usual = scheduler.rules.step_tokens

    def measure(
        label: str, steps: int, warmup: int, *, factor: float | None = None, most: int = usual
    ) -> None:
        """Steps with prompts beside new replies each time, so that contexts have the same lengths."""
        for learning in (True, False):
            readers = decoding_readers(engine, draw)
            replies = {*scheduler.requests}
            scheduler.pace.limit(factor)
            scheduler.rules.step_tokens = most
            if learning:
                together(engine, draw, readers, warmup)
            else:
                alone = gaps(readers, lambda: [engine.step() for _ in range(ALONE)])
                spent, computed, beside = together(engine, draw, readers, steps)
                clear(engine, replies)
                engine.step()
                alone += gaps(readers, lambda: [engine.step() for _ in range(ALONE)])
            scheduler.pace.limit(None)
            scheduler.rules.step_tokens = usual
            clear(engine)
        bench.note(f"{label}, prompts", computed / spent, "tok/s")
        for share in (0.5, 0.99):
            bench.note(f"{label}, time between tokens, p{share * 100:.0f}", at(beside, share), "ms")
            bench.note(f"{label}, without prompts, p{share * 100:.0f}", at(alone, share), "ms")
            ratio = at(beside, share) / at(alone, share)
            bench.note(f"{label}, p{share * 100:.0f} / without prompts", ratio, LONGER)

    for limit in slowdowns:
        measure(f"{name}, {READERS} replies, slowdown at most {limit:g}", RULED, LEARNING, factor=limit)
    for chunk in chunks:
        label = f"{name}, {READERS} replies, {chunk} prompt tokens a step"
        measure(label, TOGETHER, 8, most=READERS + chunk)  # the first steps compile


def decoding_readers(engine: Engine, draw: random.Random) -> list[Clocked]:
    """Replies that have all begun."""
    params = SamplingParams(temperature=0.6, max_tokens=4000, ignore_eos=True)
    readers = [Clocked() for _ in range(READERS)]
    for reader in readers:
        engine.submit(prompt_of(512, draw), params, reader)
    while any(len(reader.times) < 20 for reader in readers):
        engine.step()
    return readers


def at(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def gaps(readers: list[Clocked], work: Callable[[], object]) -> list[float]:
    """Milliseconds between the tokens of these replies during `work`."""
    for reader in readers:
        del reader.times[:-1]
    work()
    pairs = ((reader.times, reader.times[1:]) for reader in readers)
    return [(later - sooner) * 1e3 for pair in pairs for sooner, later in zip(*pair, strict=False)]


def together(
    engine: Engine, draw: random.Random, readers: list[Clocked], steps: int
) -> tuple[float, int, list[float]]:
    """Run steps in which there is always a prompt. Return seconds, prompt tokens computed, and gaps."""
    once = SamplingParams(temperature=0.6, max_tokens=1, ignore_eos=True)
    arriving = [prompt_of(ARRIVING, draw) for _ in range(4)]
    computed, schedule = 0, engine.scheduler.schedule

    def noted() -> Step | None:
        nonlocal computed
        step = schedule()
        computed += step.prefill if step else 0
        return step

    def work() -> None:
        for _ in range(steps):
            while len(engine.scheduler.waiting) < 2:
                engine.submit(draw.choice(arriving), once, Clocked())
            engine.step()
            if time.perf_counter() - began > MOST_SECONDS * max(1, steps / TOGETHER):
                break

    engine.step()
    began = time.perf_counter()
    with patch.object(engine.scheduler, "schedule", noted):
        between = gaps(readers, work)
    return time.perf_counter() - began, computed, between


def clear(engine: Engine, kept: Collection[int] = ()) -> None:
    """End all requests but these."""
    for request in [each for each in engine.scheduler.requests if each not in kept]:
        engine.abort(request)
    while engine.busy and not kept:
        engine.step()


def verify(bench: Bench, name: str, engine: Engine, rows: tuple[int, ...], verified: tuple[int, ...]) -> None:
    """Steps whose rows verify `verified` tokens: in a graph, and with their kernels launched one by one."""
    for count in rows:
        decoding(engine, count, 4000)
        plain = steps_take(engine, STEPS)
        bench.note(f"{name}, B={count}, a step without drafts", plain * 1e3, "ms")
        clear(engine)
        decoding(engine, count, 4000, speculate="ngram")
        engine.set_switch("overlap", False)
        waiting = steps_take(engine, STEPS)
        bench.note(f"{name}, B={count}, the same, not overlapped", waiting * 1e3, "ms")
        for tokens in verified:
            for on in (True, False):
                engine.runner.graphs = on
                with drafting(tokens - 1):
                    for _ in range(3):
                        engine.step()
                    spent = steps_take(engine, STEPS)
                label = f"{name}, B={count}, {tokens} tokens verified, {'in a graph' if on else 'one by one'}"
                bench.note(label, spent * 1e3, "ms")
                bench.note(f"{label}, / a step without drafts", spent / plain, LONGER)
                bench.note(f"{label}, / not overlapped", spent / waiting, LONGER)
        engine.runner.graphs = True
        engine.set_switch("overlap", True)
        clear(engine)


@contextmanager
def drafting(drafts: int) -> Iterator[None]:
    """All rows draft that many tokens, which a random model hardly ever accepts."""
    draw = random.Random(0)

    def propose(self: Speculator, request: Request, most: int) -> Drafts | None:
        assert most >= drafts
        return Drafts("ngram", drafts, tuple(prompt_of(drafts, draw)), request.stamp)

    with patch.object(Speculator, "propose", propose), patch.object(Speculator, "waits", lambda *_: True):
        yield
