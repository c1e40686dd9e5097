"""What tiers below the device's cache save, on a CPU with the built-in model: `--only NAME ...` runs some.

`replay` needs `--trace`: the file of a Mooncake trace, of which it replays one in `--share` conversations.
"""

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.engine.techniques import pocket
from engine.api.events import Admitted, Event, Transferred
from engine.api.params import SamplingParams
from engine.kv.tiers.speeds import disk_speeds
from engine.serving import transfers
from engine.serving.engine import Engine
from minichat.bench.harness import Bench, note_all, rounds
from minichat.bench.load.traces import mooncake_prompts
from minichat.bench.traffic import Reader, drain, prompts

CHAT = 1900  # tokens
MESSAGE = 32
ONE_CONTEXT = 136  # blocks, a few more than the model's 2,048 tokens


def resume(bench: Bench, *, tokens: int = CHAT) -> None:
    """The first token of a new message in a chat: all of it computed, or its blocks found somewhere."""
    ids = prompts()
    history = [next(ids) for _ in range(tokens)]
    with tempfile.TemporaryDirectory() as folder:
        engines = {
            "computed": pocket(),
            "from the device": pocket(prefix_cache=True),
            # With room for one context, an engine copies all of it to host memory when a reply ends.
            "from host": pocket(prefix_cache=True, kv_host=0.1, blocks=ONE_CONTEXT, preemption="swap"),
            "from disk": pocket(prefix_cache=True, kv_disk=f"{folder}:1", preemption="swap"),
        }
        for engine in engines.values():
            _first_token(engine, history)

        def next_message(engine: Engine, *, lose: bool) -> float:
            if lose:  # others have taken the device's blocks
                engine.scheduler.pool.forget_all()
            return _first_token(engine, [*history, *(next(ids) for _ in range(MESSAGE))])

        contenders: dict[str, Callable[[], float]] = {
            name: partial(next_message, engine, lose=name in ("from host", "from disk"))
            for name, engine in engines.items()
        }
        note_all(bench, f"first token after {tokens} tokens", rounds(bench, contenders))
        for tier in "host", "disk":
            cost = engines[f"from {tier}"].scheduler.transfers.tiers[tier].cost
            bench.note(f"measured: to load a block from {tier}", cost.load.each(tokens // 16), "s")
            _close(engines[f"from {tier}"])


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


def replay(bench: Bench, *, trace: str, share: int) -> None:
    """A trace's prompts, one at a time and in its order, on a device that has room for one context."""
    asked = mooncake_prompts(Path(trace), share, longest=2000)
    with tempfile.TemporaryDirectory() as folder:
        device = partial(pocket, prefix_cache=True, blocks=ONE_CONTEXT)
        engines = {
            "device": device(),
            "with host": device(kv_host=0.1),
            "with disk": device(kv_disk=f"{folder}/alone:2"),
            "with host and disk": device(kv_host=0.1, kv_disk=f"{folder}/below:2"),
        }
        loaded = {name: Counter[str]() for name in engines}
        for name, engine in engines.items():
            engine.bus.subscribe(partial(_count_loaded, loaded[name]))
        firsts: dict[str, list[float]] = {name: [] for name in engines}
        task = bench.progress.add_task("replay", total=len(asked))
        for n, tokens in enumerate(asked):
            for name in list(engines)[:: -1 if n % 2 else 1]:
                firsts[name].append(_first_token(engines[name], tokens))
            bench.progress.update(task, advance=1, refresh=True)
        bench.progress.remove_task(task)
        bench.note("prompts", len(asked), "requests")
        bench.note("prompts", sum(map(len, asked)), "tokens")
        for name, engine in engines.items():
            scheduler = engine.scheduler
            bench.note(f"found, {name}", scheduler.cached_tokens / scheduler.prompt_tokens * 100, "%")
            for tier, held in loaded[name].items():
                bench.note(f"loaded from {tier}, {name}", held / scheduler.prompt_tokens * 100, "%")
            bench.note(f"first token, mean, {name}", mean(firsts[name]), "s")
        note_all(bench, "first token", firsts)
        _close(*engines.values())


def _count_loaded(found: Counter[str], event: Event) -> None:
    if isinstance(event, Admitted) and event.loaded:
        found[event.tier] += event.held


def pressure(bench: Bench) -> None:
    """Eight chats of 1,000 tokens send a message each. The device has room for four of them."""
    ids, order = prompts(), random.Random(0)
    histories = [[next(ids) for _ in range(1000)] for _ in range(8)]
    with tempfile.TemporaryDirectory() as folder:
        engines = _tiers_below(folder, blocks=256)

        def messages(engine: Engine) -> float:
            began = time.perf_counter()
            shuffled = order.sample(histories, len(histories))
            replies = [_ask(engine, [*each, *(next(ids) for _ in range(MESSAGE))], 16) for each in shuffled]
            drain(engine)
            return sum(len(each.tokens) for each in replies) / (time.perf_counter() - began)

        note_all(bench, "eight chats", _rounds(bench, engines, messages), "tok/s")
        _close(*engines.values())


def steps(bench: Bench) -> None:
    """Decoding four replies while each new block evicts one, which is copied below before."""
    ids = prompts()
    with tempfile.TemporaryDirectory() as folder:
        engines = _tiers_below(folder, blocks=128)
        cpu: dict[int, list[float]] = {id(engine): [] for engine in engines.values()}
        copies: list[float] = []  # seconds; to host memory on a CPU, they are the engine's own
        engines["with host"].bus.subscribe(
            lambda event: copies.append(event.seconds) if isinstance(event, Transferred) else None
        )
        shares: list[float] = []
        work: dict[int, list[float]] = {id(engine): [] for engine in engines.values()}

        def decode(engine: Engine) -> float:
            replies = [_ask(engine, [next(ids) for _ in range(MESSAGE)], 200) for _ in range(4)]
            filler = _ask(engine, [next(ids) for _ in range(1600)], 2)  # the others still run when it ends
            drain(engine, until=lambda: len(filler.tokens) == 2)
            copies.clear()
            number, began, used = engine.scheduler.step, time.perf_counter(), time.thread_time()
            with _clocked(engine) as for_tiers:
                drain(engine, until=lambda: len(replies[0].tokens) > 190)
            count, used = engine.scheduler.step - number, time.thread_time() - used
            cpu[id(engine)].append(used / count)
            work[id(engine)].append(sum(for_tiers) / used * 100)
            if engine is engines["with host"]:
                shares.append(sum(copies) / (time.perf_counter() - began) * 100)
            spent = (time.perf_counter() - began) / count
            drain(engine)
            return spent

        note_all(bench, "a step of four rows", _rounds(bench, engines, decode), "s")
        on_thread = {name: cpu[id(engine)][bench.warmup :] for name, engine in engines.items()}
        note_all(bench, "the same, processor time of the engine's thread", on_thread, "s")
        for name, engine in engines.items():
            bench.note(f"of which for tiers, {name}", work[id(engine)][bench.warmup :], "%")
        bench.note("copies to host memory, of the time of the steps", shares[bench.warmup :], "%")
        for name, engine in list(engines.items())[1:]:
            used = sum(tier.used for tier in engine.scheduler.transfers.tiers.values())
            bench.note(f"copied below, {name}", used, "blocks")
        _close(*engines.values())


@contextmanager
def _clocked(engine: Engine) -> Iterator[list[float]]:
    """Yield a list of the processor seconds of all that the engine's thread does for tiers."""
    spent: list[float] = []

    def clocked(call: Callable[..., None]) -> Callable[..., None]:
        def timed(*args: Any, **options: Any) -> None:
            began = time.thread_time()
            call(*args, **options)
            spent.append(time.thread_time() - began)

        return timed

    with ExitStack() as patches:
        sinking = engine.scheduler.sinking
        places = (sinking, "copy_ahead"), (transfers, "take_ends"), (transfers, "send_orders")
        for place, name in places:
            patches.enter_context(patch.object(place, name, clocked(getattr(place, name))))
        yield spent


def direct(bench: Bench) -> None:
    """Synced writes, and reads of what is not in memory, with and without O_DIRECT."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # /tmp may be in memory
        for piece in (2**16, 2**21):
            found: dict[str, dict[str, list[float]]] = {"written": {}, "read": {}}
            for turn in range(bench.warmup + bench.repeats):
                for through in (False, True)[:: -1 if turn % 2 else 1]:
                    speeds = disk_speeds(Path(folder), direct=through, amount=2**26, piece=piece)
                    if speeds is not None and turn >= bench.warmup:
                        name = "O_DIRECT" if through else "through the page cache"
                        found["written"].setdefault(name, []).append(speeds.store / 1e9)
                        found["read"].setdefault(name, []).append(speeds.load / 1e9)
            for what, each in found.items():
                note_all(
                    bench, f"blocks of {piece // 1024} KB {what}", dict(sorted(each.items())[::-1]), "GB/s"
                )


def _tiers_below(folder: str, **config: Any) -> dict[str, Engine]:
    device = partial(pocket, prefix_cache=True, **config)
    return {
        "device": device(),
        "with host": device(kv_host=0.1),
        "with disk": device(kv_disk=f"{folder}:2"),
    }


def _rounds(
    bench: Bench, engines: dict[str, Engine], call: Callable[[Engine], float]
) -> dict[str, list[float]]:
    return rounds(bench, {name: partial(call, engine) for name, engine in engines.items()})


def _ask(engine: Engine, tokens: list[int], reply: int) -> Reader:
    reader = Reader()
    engine.submit(tokens, SamplingParams(temperature=0, max_tokens=reply, ignore_eos=True), reader)
    return reader


def _first_token(engine: Engine, tokens: list[int]) -> float:
    reader = _ask(engine, tokens, 2)
    drain(engine)
    return reader.ttft


def _close(*engines: Engine) -> None:
    for engine in engines:
        engine.close()


PARTS: dict[str, Callable[..., None]] = {
    each.__name__: each for each in (resume, restart, replay, pressure, steps, direct)
}


def run(
    bench: Bench,
    *,
    only: tuple[str, ...] = tuple(PARTS),
    tokens: int = CHAT,
    trace: str = "",
    share: int = 60,
) -> None:
    torch.set_num_threads(1)
    options = {"resume": {"tokens": tokens}, "restart": {"tokens": tokens}}
    for name in only:
        if name != "replay":
            PARTS[name](bench, **options.get(name, {}))
        elif trace:
            replay(bench, trace=trace, share=share)
        else:
            print("replay needs --trace FILE, such as mooncake_conversation_trace.jsonl", file=sys.stderr)
