"""Memory of weights and cache, the peak, and what paging and sharing save. Blocks are counted, not timed."""

import resource
import sys
from collections.abc import Iterator
from functools import partial

import torch

from engine.api.snapshot import Snapshot
from engine.serving.engine import Engine
from minichat.bench.cases import Case
from minichat.bench.harness import Bench
from minichat.bench.setup import Setup
from minichat.bench.traffic import PeakBlocks, Reader, ask, drain, peak_blocks, seconds, submit, take

SITTINGS = 1
_FORKS = 7


def cases(setup: Setup) -> Iterator[Case]:
    prompt, reply, requests = setup.sizes
    about = f"{requests} requests at once, prompts and replies of up to {prompt} and {reply} tokens"
    yield Case("model", partial(_model, setup), about)
    yield Case("paging", partial(_paging, setup), about)
    about = f"{1 + _FORKS} replies to one prompt of {8 * prompt} tokens"
    yield Case("sharing", partial(_sharing, setup), about)
    about = f"{requests} chats with the same first {4 * prompt} tokens"
    yield Case("shared prefix", partial(_prefix, setup), about)


def _model(setup: Setup, bench: Bench) -> None:
    with setup.served() as engine:
        shot = engine.snapshot()
        _peak_blocks(setup, engine)
    note_memory(bench, shot)
    tokens = shot.tokens_in(shot.blocks.size)
    bench.note(f"cache of a token{_of(shot)}", shot.memory["cache"] / tokens / 1e3, "kB")
    bench.note("peak of this process", _peak() / 1e6, "MB")
    if setup.gpu:
        bench.note("peak on the GPU", torch.cuda.max_memory_reserved() / 1e6, "MB")


def note_memory(bench: Bench, shot: Snapshot) -> None:
    """Note the sizes of weights and cache; those of a shared model are known of one rank."""
    for name in ("weights", "cache"):
        bench.note(f"{name}{_of(shot)}", shot.memory[name] / 1e6, "MB")


def _of(shot: Snapshot) -> str:
    return " of one rank" if shot.ranks else ""


def _peak() -> float:
    """Bytes of main memory at the peak so far, with torch and Python."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _peak_blocks(setup: Setup, engine: Engine) -> PeakBlocks:
    """Run a mixed workload."""
    ids = setup.ids()
    for _, size, count in setup.mixed():
        ask(engine, ids, size, count)
    return peak_blocks(engine)


def _paging(setup: Setup, bench: Bench) -> None:
    engine = setup.engine()
    size = engine.scheduler.pool.block_size
    peak, held, own, whole = _peak_blocks(setup, engine)
    bench.note("blocks at the peak", peak, "blocks")
    bench.note("of their cells, unused", 100 * (1 - held / (peak * size)), "%")
    bench.note("reserved for each reply's own most", own, "blocks")
    bench.note("reserved for the model's context", whole, "blocks")
    bench.note("reserved for the context / paged", whole / peak, "x")


def _sharing(setup: Setup, bench: Bench) -> None:
    engine, ids = setup.engine(), setup.ids()
    prompt, reply, _ = setup.sizes
    pool = engine.scheduler.pool

    def most() -> int:
        peak = 0
        while engine.busy:
            engine.step()
            peak = max(peak, pool.in_use)
        return peak

    for _ in range(1 + _FORKS):
        ask(engine, ids, 8 * prompt, reply)
    separate = most()
    first = ask(engine, ids, 8 * prompt, reply)
    drain(engine, until=lambda: first.times)
    [parent] = engine.scheduler.requests
    for _ in range(_FORKS):
        engine.fork(parent, Reader())
    forked = most()
    bench.note("separate requests", separate, "blocks")
    bench.note("one request and its forks", forked, "blocks")
    bench.note("separate / forked", separate / forked, "x")


def _prefix(setup: Setup, bench: Bench) -> None:
    engine, ids = setup.engine(), setup.ids()
    prompt, reply, requests = setup.sizes
    usual = next(switch.on for switch in engine.switches if switch.name == "prefix_cache")
    peaks = {}
    for on in (False, True):
        engine.set_switch("prefix_cache", on)
        shared = take(ids, 4 * prompt)
        seconds(engine, [submit(engine, shared, 2)])
        for _ in range(requests):
            submit(engine, [*shared, *take(ids, 16)], reply)
        peaks[on] = 0
        while engine.busy:
            engine.step()
            peaks[on] = max(peaks[on], engine.scheduler.pool.in_use)
    engine.set_switch("prefix_cache", usual)
    bench.note("without the prefix cache", peaks[False], "blocks")
    bench.note("with it", peaks[True], "blocks")
    bench.note("without / with", peaks[False] / peaks[True], "x")
