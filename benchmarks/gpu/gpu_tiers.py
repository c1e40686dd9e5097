"""What tiers below the device's cache save on a GPU, and what their transfers cost the steps.

`resume`: the first token of a new message in a chat: all of it computed, or its blocks loaded, after another
chat as large as the device's cache has evicted them; from host memory also with a step that is launched only
after they have arrived. `pressure`: 8 chats of 16,384 tokens, twice the device's
room, send a message each at once. `copies`: blocks between the device and host memory, by the engine's ways,
and by kernels of some programs. `steps`: decode steps while such copies run all the time. Weights are random.
`--disk`: a folder on the disk that is measured. `--tiers`: those of `resume` and `pressure`. `--swaps`: ways
to copy blocks: staging, rectangles, and layers, which are rectangles that a step waits for layer by layer.
"""

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal
from unittest.mock import patch

import torch

from benchmarks.engine.disk_loads import drop_from_page_cache
from benchmarks.gpu import gpu
from engine.api.events import Admitted, Event, TierProblem, Transferred
from engine.execution.cache_blocks import SwapsBy, blocks_of, mover_on
from engine.execution.runner import ModelRunner
from engine.kernels.triton.kv.blocks import move
from engine.kv.store import KVStore, Mover
from engine.kv.tiers.disk import DiskTier
from engine.kv.tiers.tier import Transfer
from engine.serving.engine import Engine
from minichat.bench.harness import Bench, note_all, rounds
from minichat.bench.shapes import COMMON, MIXTURES, SHAPES
from minichat.bench.traffic import Reader, drain, prompts, submit, take

Way = SwapsBy | Literal["layers"]
PARTS = ("resume", "steps", "copies", "pressure")
GPU = torch.device("cuda")
MESSAGE, REPLY = 32, 16
MOVED = 128  # blocks of one copy
WINDOW = 60  # steps


def run(
    bench: Bench,
    *,
    shape: str = "8B",
    tokens: tuple[int, ...] = (2048, 16384, 65536),
    chats: int = 8,
    rows: tuple[int, ...] = (16,),
    programs: tuple[int, ...] = (8, 32, 2**20),
    disk: str = ".",
    tiers: tuple[str, ...] = ("host", "disk"),
    swaps: tuple[Way, ...] = ("layers",),
    only: tuple[str, ...] = PARTS,
) -> None:
    if not torch.cuda.is_available():
        raise SystemExit(f"gpu_tiers needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    room = max(tokens) // 16 + 64
    with ExitStack() as ends:
        folder = ends.enter_context(tempfile.TemporaryDirectory(dir=disk))
        below: dict[str, dict[str, Any]] = {
            "device": {},
            "host": {"host_blocks": None, "kv_host": 5 * room * _block_bytes(shape) / 2e9},
            "disk": {
                "kv_disk": f"{folder}:{8 * room * _block_bytes(shape) // 10**9 + 2}",
                "preemption": "swap",
            },
        }
        needed = ["device", *tiers] if {"resume", "pressure"} & {*only} else ["host"]
        engines = {}
        for name in needed:
            model = ends.enter_context(tempfile.TemporaryDirectory())
            config = {"prefix_cache": True, "blocks": room, "max_context": max(tokens) + 256} | below[name]
            engines[name], seconds = gpu.opened(shape, model, **config)
            ends.callback(engines[name].close)
            bench.note(f"{shape}, {name}, from start to the first reply", seconds, "s")
            began = time.perf_counter()
            store = _store(engines[name])
            store.host_ready(least=store.host_blocks)
            bench.note(f"{shape}, {name}, then until host memory is pinned", time.perf_counter() - began, "s")
        if "resume" in only:
            resume(bench, engines, tokens, swaps, Path(folder))
        if "steps" in only:
            steps(bench, engines["host"], rows, swaps, programs)
        if "copies" in only:
            copies(bench, engines["host"], swaps, programs)
        if "pressure" in only:
            pressure(bench, engines, 2 * (room - 64) * 16 // chats, chats)


def _block_bytes(shape: str) -> int:
    layers = (SHAPES | MIXTURES)[shape]["num_hidden_layers"]
    heads, dim = COMMON["num_key_value_heads"], COMMON["head_dim"]
    return int(16 * layers * 2 * heads * dim * 2)


def _runner(engine: Engine) -> ModelRunner:
    assert isinstance(engine.runner, ModelRunner)
    return engine.runner


def _store(engine: Engine) -> KVStore:
    return _runner(engine).store


def _mover(engine: Engine, way: Way) -> Mover:
    """The engine's way to copy blocks from now on."""
    arrivals = _runner(engine).arrivals
    arrivals.by_layer = way == "layers"
    return mover_on(GPU, "rectangles" if way == "layers" else way, arrivals)


class Watch:
    """What an engine's events say about its tiers."""

    def __init__(self, engine: Engine) -> None:
        self.admitted: list[Admitted] = []
        self.transfers: list[Transferred] = []
        engine.bus.subscribe(self._see)

    def _see(self, event: Event) -> None:
        if isinstance(event, Admitted):
            self.admitted.append(event)
        elif isinstance(event, Transferred):
            self.transfers.append(event)
        if isinstance(event, TierProblem) or (isinstance(event, Transferred) and event.error):
            print("tier:", event)

    def note(self, bench: Bench, what: str, block_bytes: int) -> None:
        for kind, loads in ("loads", True), ("stores", False):
            moved = [each for each in self.transfers if each.load is loads and not each.error]
            blocks = sum(each.blocks for each in moved)
            if blocks:
                speed = blocks * block_bytes / sum(each.seconds for each in moved) / 1e9
                bench.note(f"{what}, speed of {kind}", speed, "GB/s")
                bench.note(f"{what}, blocks of {kind}", blocks, "blocks")


def resume(
    bench: Bench, engines: dict[str, Engine], lengths: tuple[int, ...], swaps: tuple[Way, ...], folder: Path
) -> None:
    ids = prompts()
    watches = {name: Watch(engine) for name, engine in engines.items()}
    chats = {length: take(ids, length) for length in sorted(lengths)}
    filler = take(ids, max(lengths))
    for name, engine in engines.items():
        for chat in chats.values() if name != "device" else ():
            _first_token(engine, chat)
        if name == "host":
            _first_token(engine, filler)
    if "host" in engines:
        where(bench, engines["host"], watches["host"], chats, ids)
    if "disk" in engines:
        disk = engines["disk"].scheduler.transfers.tiers["disk"]
        assert isinstance(disk, DiskTier)
        began = time.perf_counter()
        disk.flush()
        bench.note("written to disk after the last reply, in", time.perf_counter() - began, "s")
        bench.note("blocks on disk", disk.used, "blocks")

    def message(
        name: str, length: int, *, cold: bool = False, follow: bool = True, swapped: Way = swaps[0]
    ) -> float:
        engine = engines[name]
        _store(engine).mover = _mover(engine, swapped)
        if name == "host":
            if length == min(lengths):
                _first_token(engine, filler)  # has evicted the chats; the other chats do so for one another
        else:
            engine.scheduler.pool.forget_all()
        if cold:
            drop_from_page_cache(folder)
        with nullcontext() if follow else patch.object(engine.runner, "follow", return_value=False):
            seconds = _first_token(engine, [*chats[length], *take(ids, MESSAGE)])
        offer = watches[name].admitted[-1]
        if name != "device" and not (offer.loaded and offer.tier == name):
            print(f"{name}, {length} tokens: not loaded: {offer}")
        return seconds

    found: dict[tuple[str, int], list[float]] = {}
    every = {
        "computed": partial(message, "device"),
        **{f"from host, {each}": partial(message, "host", swapped=each) for each in swaps},
        "from host, launched after": partial(message, "host", follow=False),
        "from the page cache": partial(message, "disk"), "from disk": partial(message, "disk", cold=True),
    }  # fmt: skip
    kinds = {kind: how for kind, how in every.items() if how.args[0] in engines}
    for turn in range(bench.warmup + bench.repeats):
        for kind, how in kinds.items():
            for length in chats:
                seconds = how(length)
                if turn >= bench.warmup:
                    found.setdefault((kind, length), []).append(seconds)
    for length in chats:
        note_all(bench, f"first token after {length} tokens", {kind: found[kind, length] for kind in kinds})
    each = _store(engines["device"]).nbytes // len(_store(engines["device"]).layers[0].keys)
    for name in list(engines)[1:]:
        watches[name].note(bench, f"resume, {name}", each)
        transfers, costs = engines[name].scheduler.transfers, engines[name].scheduler.costs
        load, computed = transfers.tiers[name].cost.load.each(2048 // 16), costs.recompute(2048) / 2048
        bench.note(f"measured by the engine: to load a token's blocks, {name}", load / 16 * 1e6, "us")
        bench.note(f"measured by the engine: to compute a token of 2,048, {name}", computed * 1e6, "us")


def where(
    bench: Bench, engine: Engine, watch: Watch, chats: dict[int, list[int]], ids: Iterator[int]
) -> None:
    """The parts of a first token whose chat's blocks are in host memory, in milliseconds."""
    rules, usual = engine.scheduler.rules, engine.scheduler.rules.preemption
    rules.preemption = "swap"
    for length, chat in chats.items():
        found: dict[str, list[float]] = {}
        for _ in range(5):
            engine.scheduler.pool.forget_all()
            reader = submit(engine, [*chat, *take(ids, MESSAGE)], 2)
            began = time.perf_counter()
            engine.step()
            ordered = time.perf_counter() - began
            drain(engine)
            _checked([reader])
            request, arrived = watch.admitted[-1].request, watch.admitted[-1].at
            (load,) = [each for each in watch.transfers[-8:] if each.load and each.request == request]
            again = _first_token(engine, [*chat, *take(ids, MESSAGE)])
            parts = {
                "the first token": reader.ttft, "the call that orders the load": ordered,
                "the load, on the device": load.seconds,
                "from the message until its step is launched": arrived - reader.submitted,
                "from there to the token": reader.times[0] - arrived,
                "the first token, blocks on the device": again,
            }  # fmt: skip
            for part, seconds in parts.items():
                found.setdefault(part, []).append(seconds * 1e3)
        for part, taken in found.items():
            bench.note(f"{length} tokens from host memory: {part}", taken, "ms")
    rules.preemption = usual


def pressure(bench: Bench, engines: dict[str, Engine], length: int, chats: int) -> None:
    ids, order = prompts(1), random.Random(0)
    histories = [take(ids, length) for _ in range(chats)]
    watches = {name: Watch(engine) for name, engine in engines.items()}
    below = list(engines)[1:]
    for name in below:
        for history in histories:
            _first_token(engines[name], history)
    for history in histories[-2:]:  # the cache of an engine without tiers keeps no more of them
        _first_token(engines["device"], history)

    def messages(engine: Engine) -> float:
        began = time.perf_counter()
        shuffled = order.sample(histories, len(histories))
        replies = [submit(engine, [*each, *take(ids, MESSAGE)], REPLY) for each in shuffled]
        drain(engine)
        _checked(replies)
        return sum(len(each.tokens) for each in replies) / (time.perf_counter() - began)

    contenders = {name: partial(messages, engine) for name, engine in engines.items()}
    note_all(bench, f"{chats} chats of {length} tokens", rounds(bench, contenders), "tok/s")
    each = _store(engines["device"]).nbytes // len(_store(engines["device"]).layers[0].keys)
    for name in below:
        watches[name].note(bench, f"pressure, {name}", each)


def copies(bench: Bench, engine: Engine, swaps: tuple[Way, ...], programs: tuple[int, ...]) -> None:
    """Gigabytes per second of blocks in both directions, and of one copy of the same bytes."""
    store, pairs = _store(engine), [(at, at) for at in range(MOVED)]
    make = blocks_of(store, GPU, _runner(engine).arrivals)
    device = [each for layer in store.layers for each in layer.tensors()]
    host = [each for layer in store.host.slabs[0] for each in layer.tensors()]
    nbytes = sum(each[0].nbytes for each in device) * MOVED
    usual = store.mover
    shuffled = list(zip(random.Random(0).sample(range(MOVED), MOVED), range(MOVED), strict=True))
    for each in swaps:
        store.mover = _mover(engine, each)
        for order, given in ("neighbors", pairs), ("shuffled", shuffled):
            for name, work in ("to", store.swap_out), ("from", store.swap_in):
                calls = [_call(partial(make(()).move, partial(work, given))) for _ in range(6)][2:]
                what = f"{name} host memory, {each}, {order}"
                bench.note(what, [nbytes / load.result() / 1e9 for _, load in calls], "GB/s")
                bench.note(f"{what}: the call", [seconds * 1e3 for seconds, _ in calls], "ms")
    store.mover = usual
    for count in programs:
        for name, sides in ("to", (device, host)), ("from", (host, device)):
            seconds = [_seconds(partial(move, *sides, pairs, count)) for _ in range(4)][1:]
            speeds = [nbytes / each / 1e9 for each in seconds]
            bench.note(f"{name} host memory, {_named(count)}", speeds, "GB/s")
    there = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    here = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    for name, target, source in ("to", here, there), ("from", there, here):
        seconds = [_seconds(partial(target.copy_, source, non_blocking=True)) for _ in range(4)][1:]
        bench.note(f"{name} host memory, one copy", [nbytes / each / 1e9 for each in seconds], "GB/s")


def _call(begin: Callable[[], Transfer]) -> tuple[float, Transfer]:
    """How long the host was busy with it, and what has ended."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    begun = begin()
    seconds = time.perf_counter() - began
    torch.cuda.synchronize()
    return seconds, begun


def _named(count: int) -> str:
    return "a program for each piece" if count == 2**20 else f"{count} programs"


def _seconds(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def steps(
    bench: Bench, engine: Engine, rows: tuple[int, ...], swaps: tuple[Way, ...], programs: tuple[int, ...]
) -> None:
    """Windows of steps without copies and with some that follow one another, in turn."""
    store, pool = _store(engine), engine.scheduler.pool
    make, usual = blocks_of(store, GPU), store.mover
    pairs = [(block, at) for at, block in enumerate(range(pool.size - MOVED, pool.size))]
    back = [(at, block) for block, at in pairs]
    there = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    here = torch.empty(2**28, dtype=torch.uint8, pin_memory=True)

    def copy(turn: int) -> Transfer:
        return make(()).move((lambda: store.swap_in(back)) if turn % 2 else (lambda: store.swap_out(pairs)))

    def one_copy(turn: int) -> Transfer:
        def work() -> None:
            target, source = (there, here) if turn % 2 else (here, there)
            target.copy_(source, non_blocking=True)

        return make(()).move(work)

    def window(begin: Callable[[int], Transfer] | None) -> tuple[float, int]:
        torch.cuda.synchronize()
        under_way, turn, began = None, 0, time.perf_counter()
        for _ in range(WINDOW):
            if begin is not None and (under_way is None or under_way.done()):
                under_way, turn = begin(turn), turn + 1
            engine.step()
        spent = (time.perf_counter() - began) / WINDOW
        torch.cuda.synchronize()
        return spent, turn

    for count in rows:
        pool.forget_all()
        windows = 2 * (len(programs) + len(swaps) + 2) * bench.repeats + 4
        gpu.decoding(engine, count, WINDOW * windows + 200)
        ways: dict[str, Way | Mover] = {"one copy": usual}
        ways |= {f"as the engine copies, {each}": each for each in swaps}
        ways |= {_named(each): partial(move, programs=each) for each in programs}
        window(None)
        for kind, way in ways.items():
            begin = one_copy if kind == "one copy" else copy
            store.mover = _mover(engine, way) if isinstance(way, str) else way
            alone, beside, turns = [], [], 0
            for _ in range(bench.repeats):
                alone.append(window(None)[0])
                spent, turns = window(begin)
                beside.append(spent)
            store.mover = usual
            slower = [b / a for a, b in zip(alone, beside, strict=True)]
            bench.note(f"B={count}, a step", [each * 1e3 for each in alone], "ms")
            bench.note(f"B={count}, slower beside copies, {kind}", slower, "x")
            bench.note(
                f"B={count}, those copies, {kind}", turns * 2**28 / (median(beside) * WINDOW) / 1e9, "GB/s"
            )
        for request in list(engine.scheduler.requests):
            engine.abort(request)
        drain(engine)


def _first_token(engine: Engine, tokens: list[int]) -> float:
    reader = submit(engine, tokens, 2)
    drain(engine)
    _checked([reader])
    return reader.ttft


def _checked(readers: list[Reader]) -> None:
    for reader in readers:
        if reader.error:
            raise SystemExit(f"a request failed: {reader.error}")
