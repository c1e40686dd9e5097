"""Prompts and replies on engines apart, beside two replicas: the gaps between the tokens of steady replies.

`long`: prompts of a Mooncake trace, `--rate` a second, among `--steady` replies that never pause. `burst`: a
third of `--count` long prompts at once, without other replies. `short`: prompts of 32 tokens, where there is
nothing to take away from the replies. `check`: the same replies as after a hit in a replica's prefix cache.
All engines are started first, one of each fleet on each device, and the fleets take turns, with the same
requests. On GPUs, with random weights: `--device auto --shape 8B --scale 1 --longest 32000`.
`--ways gpu host` compares blocks that go from GPU to GPU with blocks that go through host memory.
"""

import json
import random
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from engine.api.commands import Abort, Submit
from engine.api.config import EngineConfig
from engine.api.events import Delta, Event, FirstToken, PromptSent, Transferred
from engine.api.params import SamplingParams
from engine.api.snapshot import EXCHANGE, GPU
from engine.fleet.fleet import Fleet
from engine.fleet.local import shares, start_apart_fleet, start_fleet
from engine.host.process import EngineProcess
from minichat.bench.harness import Bench
from minichat.bench.load.traces import mooncake_prompts
from minichat.bench.shapes import COMMON, SHAPES

PARTS = ("long", "burst", "check", "short")
_SHORT = 32  # tokens
_STEADY = 400  # tokens of a steady reply, after which the next one starts
_CHECKED = 6  # replies
_SETTLE = 1.5  # seconds before the first prompt
_READY_WITHIN = 60.0  # seconds until all engines have warmed up and their memory is pinned


@dataclass(slots=True)
class _Load:
    """What one round has measured."""

    gaps: list[float] = field(default_factory=list)  # between two tokens of a steady reply
    firsts: list[float] = field(default_factory=list)  # to the first token of each prompt
    sent: list[PromptSent] = field(default_factory=list)
    loads: list[Transferred] = field(default_factory=list)  # of blocks that were sent
    seconds: float = 0.0  # until the last prompt's reply has ended


def run(
    bench: Bench,
    *,
    only: tuple[str, ...] = PARTS,
    trace: str = "",
    share: int = 32,
    scale: int = 16,
    longest: int = 1900,
    count: int = 40,
    rate: float = 1.0,
    short_rate: float = 4.0,
    steady: int = 4,
    tokens: int = 32,
    device: str = "cpu",
    shape: str = "",
    blocks: int = 2048,
    room: float = 0.25,
    ways: tuple[str, ...] = (GPU,),
) -> None:
    """`tokens`: of each prompt's reply. `room`: GB through which blocks are sent. `ways`: a fleet for each of
    them, gpu (where that is possible) or host.
    """
    prompts = mooncake_prompts(Path(trace), share, longest, scale)[:count] if trace else []
    if not prompts and {"long", "burst"} & {*only}:
        print("long and burst need --trace FILE, such as mooncake_conversation_trace.jsonl", file=sys.stderr)
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        fleets = _fleets(_config(folder, device, shape, blocks, longest + 1024), folder, room, ways)
        for each in fleets.values():
            ends.callback(each.close)
        _prepare(fleets, [_random(number, min(2000, longest)) for number in range(2)])
        if prompts and "long" in only:
            bench.note("prompts", len(prompts), "requests")
            bench.note("tokens of a prompt", [float(len(each)) for each in prompts], "tokens")
            _compare(bench, "long", fleets, prompts, rate, steady, tokens)
        if prompts and "burst" in only:
            at_once = [[1 + at % 7, *each] for at, each in enumerate(prompts[: -(-count // 3)])]
            _compare(bench, "burst", fleets, at_once, 0.0, 0, tokens)
        if "check" in only:
            check(bench, fleets, longest)
        if "short" in only:
            brief = [_random(number, _SHORT) for number in range(count)]
            _compare(bench, "short", fleets, brief, short_rate, steady, tokens)


def check(bench: Bench, fleets: dict[str, Fleet], longest: int) -> None:
    """How many replies are those of a replica that finds the whole blocks in its prefix cache."""
    replicas, *others = fleets.values()
    params = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
    equal = [0] * len(others)
    for number in range(_CHECKED):
        prompt = _random(1000 + number, longest * (1 + number) // (2 * _CHECKED))
        whole = (len(prompt) - 1) // 16 * 16
        replicas.submit(prompt[:whole], SamplingParams(max_tokens=1, temperature=0.0)).result()
        expected = replicas.submit(prompt, params).result().tokens
        for at, each in enumerate(others):
            equal[at] += each.submit(prompt, params).result().tokens == expected
    for name, count in zip([*fleets][1:], equal, strict=True):
        bench.note(f"{name}, equal replies of {_CHECKED}", count, "replies")


def _config(folder: Path, device: str, shape: str, blocks: int, context: int) -> EngineConfig:
    """The built-in model, or random weights of a shape."""
    if not shape:
        return EngineConfig(model="pocket", device=device, blocks=blocks, threads=1)
    (folder / "config.json").write_text(json.dumps(COMMON | SHAPES[shape]))
    return EngineConfig(
        model=str(folder), device=device, blocks=blocks, dummy_weights=True, max_context=context, warm=True
    )


def _fleets(config: EngineConfig, folder: Path, room: float, ways: tuple[str, ...]) -> dict[str, Fleet]:
    def replicas() -> Fleet:
        return start_fleet(shares(config, 2), EngineProcess, folder / "replica.log", 0)

    def apart(way: str) -> Fleet:
        log, direct = folder / f"{way}.log", way == GPU
        return start_apart_fleet(shares(config, 2), 1, EngineProcess, log, 0, room=room, direct=direct)

    with ThreadPoolExecutor(1 + len(ways)) as starting:
        begun = {"2 replicas": starting.submit(replicas)}
        begun |= {_named(way, ways): starting.submit(apart, way) for way in ways}
        return {name: each.result() for name, each in begun.items()}


def _named(way: str, ways: tuple[str, ...]) -> str:
    return "apart" if len(ways) == 1 else f"apart, {way}"


def _prepare(fleets: dict[str, Fleet], prompts: list[list[int]]) -> None:
    """Wait until all engines are ready, and blocks are sent."""
    latest = time.monotonic() + _READY_WITHIN
    while any(each.snapshot().warmed < 1 for each in fleets.values()) and time.monotonic() < latest:
        time.sleep(0.2)
    sent = False
    for number in range(20):
        again = [[2 + number, *each] for each in prompts]
        _, *loads = [_round(each, again, 0.0, 0, 8) for each in fleets.values()]
        if sent:  # once more: the first one has compiled what the copies need
            return
        sent = all(any(each.sent for each in load.sent) and load.loads for load in loads)
        time.sleep(0.0 if sent else 0.5)
    print("apart: no blocks are sent", file=sys.stderr)


def _round(fleet: Fleet, prompts: list[list[int]], rate: float, steady: int, tokens: int) -> _Load:
    """Submit the prompts, `rate` a second or all at once, among steady replies."""
    load, stop = _Load(), threading.Event()
    firsts: dict[int, float] = {}  # of all requests: a first token may come before its number is known here

    def note(event: Event) -> None:
        if isinstance(event, FirstToken):
            firsts[event.request] = event.seconds
        elif isinstance(event, PromptSent) and not event.error:
            load.sent.append(event)
        elif isinstance(event, Transferred) and event.load and event.tier == EXCHANGE and not event.error:
            load.loads.append(event)

    replies = [_Steady(fleet, number, load.gaps, stop) for number in range(steady)]
    for each in replies:
        each.begin()
    if steady:
        time.sleep(_SETTLE)
        load.gaps.clear()
    unsubscribe = fleet.subscribe(note)
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    began, streams = time.perf_counter(), []
    for number, prompt in enumerate(prompts):
        if rate:
            time.sleep(max(0.0, began + number / rate - time.perf_counter()))
        streams.append(fleet.submit(prompt, params))
    for stream in streams:
        stream.result()
    load.seconds = time.perf_counter() - began
    load.firsts = [firsts[stream.id] for stream in streams if stream.id in firsts]
    stop.set()
    unsubscribe()
    for each in replies:
        each.end()
    return load


class _Steady:
    """A reply after the other, to short prompts of their own."""

    def __init__(self, fleet: Fleet, number: int, gaps: list[float], stop: threading.Event) -> None:
        self._fleet, self._gaps, self._stop = fleet, gaps, stop
        self._draw, self._last, self._over = random.Random(number), 0.0, threading.Event()

    def begin(self) -> None:
        prompt = tuple(self._draw.randrange(10, 3000) for _ in range(_SHORT))
        self._last = 0.0
        params = SamplingParams(max_tokens=_STEADY, temperature=0.0, ignore_eos=True)
        self._accepted = self._fleet.send(Submit(prompt, params), self._take)

    def _take(self, delta: Delta) -> None:
        now = time.perf_counter()
        if self._last and delta.tokens and not self._stop.is_set():
            self._gaps.append(now - self._last)
        self._last = now
        if delta.last and (self._stop.is_set() or delta.error):
            self._over.set()
        elif delta.last:
            self.begin()

    def end(self) -> None:
        self._fleet.send(Abort((self._accepted.result().id,))).result()
        while not self._over.wait(0.2):  # the next one had begun
            self._fleet.send(Abort((self._accepted.result().id,))).result()


def _compare(
    bench: Bench,
    case: str,
    fleets: dict[str, Fleet],
    prompts: list[list[int]],
    rate: float,
    steady: int,
    tokens: int,
) -> None:
    rounds = {name: _round(fleet, prompts, rate, steady, tokens) for name, fleet in fleets.items()}
    for name, load in rounds.items():
        for share in (0.5, 0.99, 0.999) if load.gaps else ():
            bench.note(
                f"{case}, {name}, p{share * 100:g} between tokens", _part(load.gaps, share) * 1e3, "ms"
            )
        for share in (0.5, 0.9):
            bench.note(
                f"{case}, {name}, p{share * 100:g} of first tokens", _part(load.firsts, share) * 1e3, "ms"
            )
        bench.note(f"{case}, {name}, until the last reply", load.seconds, "s")
    before, *_ = rounds.values()
    for name, apart in [*rounds.items()][1:]:
        _note_sent(bench, f"{case}, {name}", fleets[name], apart)
        if before.gaps:
            for share in (0.5, 0.99):
                ratio = _part(apart.gaps, share) / _part(before.gaps, share)
                bench.note(f"{case}, {name} / 2 replicas, p{share * 100:g} between tokens", ratio, "x")
        ratio = _part(apart.firsts, 0.5) / _part(before.firsts, 0.5)
        bench.note(f"{case}, {name} / 2 replicas, p50 of first tokens", ratio, "x")


def _note_sent(bench: Bench, case: str, fleet: Fleet, load: _Load) -> None:
    """What was sent, which way, and how fast it was loaded."""
    bench.note(f"{case}, prompts computed apart", len(load.sent), "requests")
    bench.note(f"{case}, blocks sent", sum(each.sent for each in load.sent), "blocks")
    direct = sum(each.sent for each in load.sent if each.way == GPU)
    bench.note(f"{case}, blocks sent from GPU to GPU", direct, "blocks")
    bench.note(f"{case}, blocks there", sum(each.blocks - each.sent for each in load.sent), "blocks")
    if load.loads:
        shot = fleet.snapshot()
        block = shot.block_size * sum(each for _, each in shot.reads.cache)
        speeds = [each.blocks * block / each.seconds / 1e9 for each in load.loads if each.seconds]
        bench.note(f"{case}, loads", speeds, "GB/s")


def _part(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _random(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(10, 3000) for _ in range(length)]
