"""What tiers below the device's cache save, on a CPU with the built-in model: `--only NAME ...` runs some."""

import tempfile
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.engine.techniques import Reader, drain, note_all, pocket, prompts, rounds
from benchmarks.harness import Bench
from engine.api.params import SamplingParams
from engine.serving.engine import Engine

CHAT = 1900  # tokens
MESSAGE = 32


def resume(bench: Bench, *, tokens: int = CHAT) -> None:
    """The first token of a new message in a chat: all of it computed, or its blocks found somewhere."""
    ids = prompts()
    history = [next(ids) for _ in range(tokens)]
    with tempfile.TemporaryDirectory() as folder:
        engines = {
            "computed": pocket(),
            "from the device": pocket(prefix_cache=True),
            "from disk": pocket(prefix_cache=True, kv_disk=f"{folder}:1", preemption="swap"),
        }
        for engine in engines.values():
            _first_token(engine, history)

        def next_message(engine: Engine, *, lose: bool) -> float:
            if lose:  # others have taken the device's blocks
                engine.scheduler.pool.forget_all()
            return _first_token(engine, [*history, *(next(ids) for _ in range(MESSAGE))])

        contenders: dict[str, Callable[[], float]] = {
            name: partial(next_message, engine, lose=name == "from disk") for name, engine in engines.items()
        }
        note_all(bench, f"first token after {tokens} tokens", rounds(bench, contenders))
        cost = engines["from disk"].scheduler.transfers.tiers["disk"].cost
        bench.note("measured: to load a block from disk", cost.load or 0.0, "s")
        _close(engines["from disk"])


def restart(bench: Bench, *, tokens: int = CHAT) -> None:
    """The same after the engine was started again: the first request of a new engine."""
    ids = prompts()
    history = [next(ids) for _ in range(tokens)]

    def started(**config: object) -> float:
        engine = pocket(prefix_cache=True, **config)
        _first_token(engine, [next(ids) for _ in range(40)])  # torch's own first time
        seconds = _first_token(engine, history)
        _close(engine)
        return seconds

    with tempfile.TemporaryDirectory() as folder:
        started(kv_disk=f"{folder}:1")
        contenders: dict[str, Callable[[], float]] = {
            "computed": started,
            "from disk": partial(started, kv_disk=f"{folder}:1"),
        }
        note_all(bench, f"first token of {tokens} tokens in a new engine", rounds(bench, contenders))


def _first_token(engine: Engine, tokens: list[int]) -> float:
    reader = Reader()
    engine.submit(tokens, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True), reader)
    drain(engine)
    return reader.ttft


def _close(engine: Engine) -> None:
    for tier in engine.scheduler.transfers.tiers.values():
        tier.close()


PARTS = {each.__name__: each for each in (resume, restart)}


def run(bench: Bench, *, only: tuple[str, ...] = tuple(PARTS), tokens: int = CHAT) -> None:
    torch.set_num_threads(1)
    for name in only:
        if name not in PARTS:
            raise SystemExit(f"--only {name}: choose from {', '.join(PARTS)}")
        PARTS[name](bench, tokens=tokens)
