"""Time to the first token and between tokens: by the number of replies, the prompt and the chunk."""

from collections.abc import Iterator
from functools import partial
from statistics import median, quantiles

from engine.serving.engine import Engine
from minichat.bench.cases import Case
from minichat.bench.harness import Bench
from minichat.bench.setup import Setup
from minichat.bench.traffic import Reader, abort_all, ask, drain, seconds

_PROMPTS = (32, 128, 512, 1024, 4096, 16384)
_READERS = 4  # replies that run when a long prompt arrives


def cases(setup: Setup) -> Iterator[Case]:
    prompt, reply, _ = setup.sizes
    for rows in setup.rows_or((1, 4, 16), (1, 8, 32, 128, 256)):
        about = f"prompts of {prompt} tokens, replies of {reply}"
        yield Case(f"{rows} at once", partial(_at_once, setup, rows), about)
    for size in sorted({*(each for each in _PROMPTS if each < 8 * prompt), 8 * prompt}):
        yield Case(
            f"prompt of {size}", partial(_alone, setup, size), f"one request at a time, a reply of {reply}"
        )
    for chunk in (None, 512, 256, 64):
        name = "usual chunks" if chunk is None else f"chunks of {chunk}"
        about = f"a prompt of {8 * prompt} tokens arrives while {_READERS} replies run"
        yield Case(name, partial(_arrival, setup, chunk), about)


def _at_once(setup: Setup, rows: int, bench: Bench) -> None:
    engine, ids = setup.engine(), setup.ids()
    prompt, reply, _ = setup.sizes

    def call() -> dict[str, float]:
        readers = [ask(engine, ids, prompt, reply) for _ in range(rows)]
        seconds(engine, readers)
        gaps = [gap for reader in readers for gap in reader.gaps]
        return {
            "first token, p50": median(reader.ttft for reader in readers),
            "first token, longest": max(reader.ttft for reader in readers),
            "between tokens, p50": median(gaps),
            "between tokens, p99": percentile(gaps, 99),
        }

    names = ("first token, p50", "first token, longest", "between tokens, p50", "between tokens, p99")
    bench.observe(dict.fromkeys(names, "s"), call)


def _alone(setup: Setup, size: int, bench: Bench) -> None:
    """From a short question to a long document."""
    engine, ids = setup.engine(), setup.ids()
    _, reply, _ = setup.sizes

    def call() -> dict[str, float]:
        reader = ask(engine, ids, size, reply)
        return {"whole reply": seconds(engine, [reader]), "first token": reader.ttft}

    bench.observe({"first token": "s", "whole reply": "s"}, call)


def _arrival(setup: Setup, chunk: int | None, bench: Bench) -> None:
    changes = {} if chunk is None else {"max_step_tokens": chunk}
    engine, ids = setup.engine(**changes), setup.ids()
    prompt, _, _ = setup.sizes

    def call() -> dict[str, float]:
        running, arriving = arrival(engine, ids, prompt)
        return {
            "longest stall of a reply": max(max(reader.gaps[2:]) for reader in running),
            "first token of the prompt": arriving.ttft,
        }

    bench.observe({"longest stall of a reply": "s", "first token of the prompt": "s"}, call)


def arrival(engine: Engine, ids: Iterator[int], prompt: int) -> tuple[list[Reader], Reader]:
    """A prompt 8 times as long arrives while short ones are answered. Return the readers of both."""
    running = [ask(engine, ids, 16, 8 * prompt) for _ in range(_READERS)]
    drain(engine, until=lambda: all(len(reader.times) > 3 for reader in running))
    arriving = ask(engine, ids, 8 * prompt, 2)
    drain(engine, until=lambda: len(arriving.times) == 2)
    abort_all(engine)
    drain(engine)
    return running, arriving


def percentile(values: list[float], percent: int) -> float:
    return values[0] if len(values) == 1 else quantiles(values, n=100, method="inclusive")[percent - 1]
