"""Prompts and replies on engines apart, beside two replicas: the gaps between the tokens of steady replies.

`long`: prompts of a Mooncake trace, `--rate` a second, among `--steady` replies that never pause. `burst`: a
third of `--count` long prompts at once, without other replies. `short`: prompts of 32 tokens, where there is
nothing to take away from the replies. `check`: the same replies as after a hit in a replica's prefix cache.
One fleet runs at a time, two replicas first, each with the same requests. So only the first one compiles
kernels that no cache has. A fleet has `--ready` seconds to start, and each case `--within` seconds; figures
are printed as they come. `--logs FOLDER` keeps the engines' logs.
On GPUs, with random weights: `--device auto --shape 8B --scale 1 --longest 32000`.
`--ways gpu host` compares blocks that go from GPU to GPU with blocks that go through host memory.
"""

import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import count as counted
from pathlib import Path

from benchmarks.server.lines import Lines
from benchmarks.server.rounds import SHORT, Load, Reply, play
from benchmarks.server.watched import Build, Watched
from engine.api.config import EngineConfig
from engine.api.errors import EngineError
from engine.api.params import SamplingParams
from engine.api.snapshot import GPU
from engine.fleet.fleet import Fleet
from engine.fleet.local import Start, shares, start_apart_fleet, start_fleet
from minichat.bench.harness import LONGER, Bench
from minichat.bench.load.traces import mooncake_prompts
from minichat.bench.shapes import COMMON, SHAPES

PARTS = ("long", "burst", "check", "short")
_REPLICAS = "2 replicas"
_CHECKED = 6  # replies
_TRIED = 2000  # tokens of prompts that are sent until blocks arrive


@dataclass(frozen=True, slots=True)
class _Case:
    prompts: list[list[int]]
    rate: float
    steady: int


@dataclass
class _Compared:
    """What two replicas have measured, with which the other fleets are compared."""

    lines: Lines
    loads: dict[str, Load] = field(default_factory=dict)  # by case
    replies: list[list[int]] = field(default_factory=list)


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
    ready: float = 90.0,
    within: float = 60.0,
    logs: str = "",
) -> None:
    """`tokens`: of each prompt's reply. `room`: GB through which blocks are sent. `ways`: a fleet for each of
    them, gpu (where that is possible) or host.
    """
    prompts = mooncake_prompts(Path(trace), share, longest, scale)[:count] if trace else []
    if not prompts and {"long", "burst"} & {*only}:
        print("long and burst need --trace FILE, such as mooncake_conversation_trace.jsonl", file=sys.stderr)
    at_once = [[1 + at % 7, *each] for at, each in enumerate(prompts[: -(-count // 3)])]
    brief = [_random(number, SHORT) for number in range(count)]
    cases = {
        "long": _Case(prompts, rate, steady),
        "burst": _Case(at_once, 0.0, 0),
        "short": _Case(brief, short_rate, steady),
    }
    cases = {name: each for name, each in cases.items() if name in only and each.prompts}
    lines = Lines(bench)
    found = _Compared(lines)
    if "long" in cases:
        lines.note("prompts", len(prompts), "requests")
        lines.note("tokens of a prompt", [float(len(each)) for each in prompts], "tokens")
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(logs or folder)
        kept.mkdir(parents=True, exist_ok=True)
        config = _config(Path(folder), device, shape, blocks, longest + 1024)
        for name, build in _fleets(config, room, ways).items():
            watched = Watched(name, kept, ready, lines.say)
            try:
                _measure(found, watched, build, cases, longest, steady, tokens, within, check="check" in only)
            except (EngineError, TimeoutError) as error:
                why = str(error) or "an engine does not answer"
                lines.problem(f"no more figures of {name}: {why}{watched.report()}")
    lines.end()


def _measure(
    found: _Compared,
    watched: Watched,
    build: Build,
    cases: dict[str, _Case],
    longest: int,
    steady: int,
    tokens: int,
    within: float,
    *,
    check: bool,
) -> None:
    """Start a fleet, take its figures, and close it."""
    with watched.running(build) as fleet:
        _prepare(watched, fleet, longest, steady)
        for name, case in cases.items():
            load = play(fleet, case.prompts, case.rate, case.steady, tokens, within)
            watched.check()
            _note(found, name, watched.name, fleet, load)
            if load.late:
                late = f"{load.late} of {len(case.prompts)} replies had not ended within {within:g} s"
                found.lines.problem(f"{name}, {watched.name}: {late}{watched.report()}")
        if check:
            _check(found, watched.name, fleet, longest, within)


def _check(found: _Compared, name: str, fleet: Fleet, longest: int, within: float) -> None:
    """How many replies are those of a replica that finds the whole blocks in its prefix cache."""
    params = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
    latest, replies = time.monotonic() + within, list[list[int]]()
    for number in range(_CHECKED):
        prompt = _random(1000 + number, longest * (1 + number) // (2 * _CHECKED))
        if name == _REPLICAS:
            whole = prompt[: (len(prompt) - 1) // 16 * 16]
            Reply(fleet, whole, SamplingParams(max_tokens=1, temperature=0.0)).ends(latest)
        reply = Reply(fleet, prompt, params)
        if not reply.ends(latest):
            raise EngineError(f"check: reply {number} had not ended within {within:g} s")
        replies.append(reply.tokens)
    if name == _REPLICAS:
        found.replies = replies
    elif found.replies:
        equal = sum(one == other for one, other in zip(replies, found.replies, strict=True))
        found.lines.note(f"{name}, equal replies of {_CHECKED}", equal, "replies")


def _config(folder: Path, device: str, shape: str, blocks: int, context: int) -> EngineConfig:
    """The built-in model, or random weights of a shape."""
    if not shape:
        return EngineConfig(model="pocket", device=device, blocks=blocks, threads=1)
    (folder / "config.json").write_text(json.dumps(COMMON | SHAPES[shape]))
    return EngineConfig(
        model=str(folder), device=device, blocks=blocks, dummy_weights=True, max_context=context, warm=True
    )


def _fleets(config: EngineConfig, room: float, ways: tuple[str, ...]) -> dict[str, Build]:
    configs = shares(config, 2)

    def replicas(start: Start, log: Path) -> Fleet:
        return start_fleet(configs, start, log, 0)

    def apart(way: str, start: Start, log: Path) -> Fleet:
        return start_apart_fleet(configs, 1, start, log, 0, room=room, direct=way == GPU)

    named = {way: "apart" if len(ways) == 1 else f"apart, {way}" for way in ways}
    return {_REPLICAS: replicas, **{named[way]: partial(apart, way) for way in ways}}


def _prepare(watched: Watched, fleet: Fleet, longest: int, steady: int) -> None:
    """Send prompts until blocks arrive, then the longest ones: first copies and steps of a kind compile."""
    sends, seeds, length, why = watched.name == _REPLICAS, counted(1), min(_TRIED, longest), ""
    while not sends:
        if watched.left <= 0:
            raise EngineError(f"no blocks are sent and loaded: {why}")
        tries = [[2, *_random(next(seeds), length)], [3, *_random(next(seeds), length)]]  # never in a cache
        load = play(fleet, tries, 0.0, 0, 8, max(1.0, watched.left))
        sends = bool(load.loads) and any(each.sent for each in load.sent)
        problems = {each.problem for each in fleet.snapshot().tiers if each.problem} | load.problems
        sent = sum(each.sent for each in load.sent)
        why = f"{sent} blocks of {len(load.sent)} prompts sent in the last try {sorted(problems) or ''}"
        time.sleep(0.0 if sends else 0.5)
    load = play(fleet, [_random(2 + at, longest) for at in range(2)], 0.0, steady, 8, max(1.0, watched.left))
    if load.late:
        raise EngineError("the first long prompts got no reply in time")


def _note(found: _Compared, case: str, name: str, fleet: Fleet, load: Load) -> None:
    note, named = found.lines.note, f"{case}, {name}"
    for share in (0.5, 0.99, 0.999) if load.gaps else ():
        note(f"{named}, p{share * 100:g} between tokens", _part(load.gaps, share) * 1e3, "ms")
    for share in (0.5, 0.9) if load.firsts else ():
        note(f"{named}, p{share * 100:g} of first tokens", _part(load.firsts, share) * 1e3, "ms")
    if not load.late:
        note(f"{named}, until the last reply", load.seconds, "s")
    if name == _REPLICAS:
        if not load.late:
            found.loads[case] = load
        return
    _note_sent(found, named, fleet, load)
    if load.late or (before := found.loads.get(case)) is None:
        return
    for share in (0.5, 0.99) if before.gaps and load.gaps else ():
        ratio = _part(load.gaps, share) / _part(before.gaps, share)
        note(f"{named} / {_REPLICAS}, p{share * 100:g} between tokens", ratio, LONGER)
    ratio = _part(load.firsts, 0.5) / _part(before.firsts, 0.5)
    note(f"{named} / {_REPLICAS}, p50 of first tokens", ratio, LONGER)


def _note_sent(found: _Compared, case: str, fleet: Fleet, load: Load) -> None:
    """What was sent, which way, and how fast it was loaded."""
    found.lines.note(f"{case}, prompts computed apart", len(load.sent), "requests")
    found.lines.note(f"{case}, blocks sent", sum(each.sent for each in load.sent), "blocks")
    direct = sum(each.sent for each in load.sent if each.way == GPU)
    found.lines.note(f"{case}, blocks sent from GPU to GPU", direct, "blocks")
    found.lines.note(f"{case}, blocks there", sum(each.blocks - each.sent for each in load.sent), "blocks")
    if load.loads:
        shot = fleet.snapshot()
        block = shot.block_size * sum(each for _, each in shot.reads.cache)
        speeds = [each.blocks * block / each.seconds / 1e9 for each in load.loads if each.seconds]
        found.lines.note(f"{case}, loads", speeds, "GB/s")


def _part(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _random(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(10, 3000) for _ in range(length)]
