"""Requests that run to their end, and N: 256 with random prompts and replies, as in nano-vllm's benchmark."""

import random
import time
from collections.abc import Sequence
from functools import cache

import torch

from engine.api.events import Delta, TokenLogprob
from engine.api.params import SamplingParams
from engine.execution.protocol import StepKind
from engine.serving.engine import Engine


def drawn(requests: int = 256) -> tuple[list[list[int]], list[int]]:
    """Return the prompts, and the lengths of the replies, of the first requests."""
    draw = random.Random(0)
    prompts = [[draw.randint(0, 10000) for _ in range(draw.randint(100, 1024))] for _ in range(256)]
    counts = [draw.randint(100, 1024) for _ in range(256)]
    return prompts[:requests], counts[:requests]


def capture_all(engine: Engine) -> None:
    """Capture a graph of each batch size, as an idle engine does. Until then, steps take larger ones."""
    runner = engine.runner
    kinds = [StepKind(rows, long=long) for rows in runner.graph_sizes for long in (False, True)]
    for compilation in runner.start_compiling(kinds):
        compilation.wait()
    runner.capture(kinds)


def contexts_left(rows: int) -> Sequence[int]:
    """Return the contexts of the first step that has at most so many rows."""
    lengths = _lengths()
    step = sorted((count for _, count in lengths), reverse=True)[rows]
    return [prompt + step for prompt, count in lengths if count > step]


@cache
def _lengths() -> Sequence[tuple[int, int]]:
    """The tokens of each prompt and of its reply."""
    prompts, counts = drawn()
    return [(len(prompt), count) for prompt, count in zip(prompts, counts, strict=True)]


class Heard:
    """A sink that collects the tokens of one reply."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []

    def __call__(self, delta: Delta) -> None:
        if delta.error:
            raise SystemExit(f"a request failed: {delta.error}")
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs


def finish(
    engine: Engine, prompts: Sequence[Sequence[int]], counts: Sequence[int], temperature: float = 0.6
) -> list[list[int]]:
    """Run the prompts to the end; return replies of `counts` tokens."""
    params = [SamplingParams(temperature=temperature, max_tokens=count, ignore_eos=True) for count in counts]
    return [each.tokens for each in heard(engine, prompts, params)]


def heard(engine: Engine, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[Heard]:
    sinks = [Heard() for _ in prompts]
    for prompt, each, sink in zip(prompts, params, sinks, strict=True):
        engine.submit(prompt, each, sink)
    while engine.busy:
        engine.step()
    return sinks


def speeds_of_mixed(engine: Engine, repeats: int, requests: int = 256) -> list[float]:
    """Tokens per second of up to three runs, after one that is not measured."""
    capture_all(engine)
    prompts, counts = drawn(requests)
    speeds = []
    for _ in range(1 + min(3, repeats)):
        torch.cuda.synchronize()
        began = time.perf_counter()
        finish(engine, prompts, counts)
        speeds.append(sum(counts) / (time.perf_counter() - began))
    return speeds[1:]
