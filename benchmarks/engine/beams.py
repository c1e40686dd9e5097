"""The cost of a beam search: tokens per second compared with samples, and blocks compared with copies.

The prompt has 512 tokens, the reply 32. All contenders recompute the prompt. Each hypothesis counts as a row,
whether it is kept or not, so both run the same number of row-steps.
"""

import time
from collections.abc import Callable
from functools import partial

import torch

from engine.api.config import EngineConfig
from engine.api.events import Delta
from engine.api.params import SamplingParams
from engine.serving.engine import Engine
from engine.start import start
from minichat.bench.harness import FASTER, Bench

PROMPT, REPLY = 512, 32
TOKENS = [3 + n % 500 for n in range(PROMPT)]
PARTS = ("speed", "blocks")
PLAIN = SamplingParams(max_tokens=REPLY, ignore_eos=True, seed=0)


def discard(delta: Delta) -> None:
    """A sink that discards its deltas."""


def engine_of(model: str, device: str) -> Engine:
    return start(
        EngineConfig(
            model=model,
            device=device,
            blocks=4096,
            max_running=64,
            prefix_cache=False,
            dummy_weights=False,
            seed=0,
        )
    )


def peak(engine: Engine) -> int:
    """Run all requests to their end; return the most blocks in use at once."""
    most = 0
    while engine.busy:
        engine.step()
        most = max(most, engine.scheduler.pool.in_use)
    return most


def run(
    bench: Bench,
    *,
    only: tuple[str, ...] = PARTS,
    widths: tuple[int, ...] = (1, 4, 10, 50),
    model: str = "pocket",
    device: str = "cpu",
) -> None:
    torch.set_num_threads(1)
    engine = engine_of(model, device)
    if "speed" in only:
        speed(bench, engine, widths, time.process_time if device == "cpu" else time.perf_counter)
    if "blocks" in only:
        blocks(bench, engine, max(widths))


def speed(bench: Bench, engine: Engine, widths: tuple[int, ...], clock: Callable[[], float]) -> None:
    """Samples and beams alternate. `clock`: the processor time on a CPU."""

    def rate(width: int, **how: int) -> float:
        engine.submit(TOKENS, PLAIN.changed(**how), discard)
        began = clock()
        while engine.busy:
            engine.step()
        return width * REPLY / (clock() - began)

    for width in widths:
        rounds = []
        for turn in range(bench.warmup + bench.repeats):
            contenders = [partial(rate, width, n=width), partial(rate, width, beams=width)]
            found = [each() for each in (contenders if turn % 2 else contenders[::-1])]
            rounds.append(found if turn % 2 else found[::-1])
        counted = rounds[bench.warmup :]
        bench.note(f"{width} samples", [samples for samples, _ in counted], "tok/s")
        bench.note(f"beams {width}", [beams for _, beams in counted], "tok/s")
        bench.note(
            f"beams {width} / {width} samples", [beams / samples for samples, beams in counted], FASTER
        )


def blocks(bench: Bench, engine: Engine, width: int) -> None:
    for _ in range(width):
        engine.submit(TOKENS, PLAIN, discard)
    copies = peak(engine)
    engine.submit(TOKENS, PLAIN.changed(beams=width), discard)
    shared = peak(engine)
    bench.note(f"peak blocks, {width} copies", copies, "blocks")
    bench.note(f"peak blocks, beams {width}", shared, "blocks")
    bench.note("shared / copies", shared / copies, "x")
