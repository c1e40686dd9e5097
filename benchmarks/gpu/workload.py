"""N, the mixed workload: 256 requests with random prompts and reply lengths, as in nano-vllm's benchmark."""

import random
from collections.abc import Sequence
from functools import cache

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
