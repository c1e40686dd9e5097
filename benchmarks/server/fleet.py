"""Replicas behind one server: what the router finds in their caches, and what a choice costs.

`replay`: a Mooncake trace by the router, in turn, and to one engine with all of the cache. Prompts of one in
`--share` conversations, scaled by 1/16, arrive in the trace's order, `--rate` a second. The replicas are
processes of this machine; give each at least two cores. With `--dry` they compute nothing: then only the
shares found in a cache mean something; the one with all of the cache never does. `--blocks` is the cache of
each replica. With `--ray` ADDRESS a Ray cluster places them, and with `--ray local` one that starts on this
machine. Engines have `--ready` seconds to start, and each case `--within` seconds; `--logs FOLDER` keeps the
logs of engines on this machine.
`simulated`: the same on replicas that compute nothing, `--speed` prompt tokens a second each (simulated.py).
`choice`: processor time of the router for a prompt of 2,000 tokens that one of four full caches holds.
"""

import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.server.lines import Lines
from benchmarks.server.rounds import Load, play
from benchmarks.server.simulated import replay as simulate
from benchmarks.server.watched import Launcher, Watched, here
from engine.api.commands import BlockNaming
from engine.api.config import EngineConfig
from engine.api.errors import EngineError
from engine.api.events import Admitted, Event, Queued
from engine.fleet.fleet import Fleet
from engine.fleet.local import Start, shares, start_fleet
from engine.fleet.ray_cluster.cluster import RayCluster
from engine.fleet.router import Placement, Router
from minichat.bench.harness import LONGER, Bench
from minichat.bench.load.traces import mooncake_prompts

PARTS = ("choice", "replay", "simulated")
_ROUTED, _IN_TURN, _BIG = "by blocks and queues", "in turn", "one big cache"
_DRY_RATE = 1000.0  # tokens a second of each reply
_Case = tuple[list[EngineConfig], Router, bool]  # the last: whether the engines make up their tokens
_LONGEST = 2000  # tokens; the built-in model reads 2,048


class RoundRobin(Router):
    """Replicas in turn, whatever they have."""

    def __init__(self, replicas: int) -> None:
        super().__init__()
        self._turn, self._count = 0, replicas

    def _rank(self, route: Placement) -> tuple[int, int]:
        return (route.replica - self._turn) % self._count, 0

    def route(self, *prompt: Any, **choice: Any) -> Placement | None:
        found = super().route(*prompt, **choice)
        self._turn += 1
        return found


def run(
    bench: Bench,
    *,
    only: tuple[str, ...] = PARTS,
    trace: str = "",
    share: int = 8,
    replicas: int = 4,
    blocks: int = 1024,
    rate: float = 10.0,
    tokens: int = 16,
    dry: bool = False,
    ray: str = "",
    speed: float = 7000.0,
    ready: float = 120.0,
    within: float = 120.0,
    logs: str = "",
) -> None:
    """`tokens`: of each reply."""
    if "choice" in only:
        choice(bench)
    if not trace and {"replay", "simulated"} & {*only}:
        print("replays need --trace FILE, such as mooncake_conversation_trace.jsonl", file=sys.stderr)
        return
    if "simulated" in only:
        simulated(
            bench, mooncake_prompts(Path(trace), share, _LONGEST), replicas, blocks, rate, tokens, speed
        )
    if "replay" in only:
        prompts, lines = mooncake_prompts(Path(trace), share, _LONGEST), Lines(bench)
        lines.note("prompts", len(prompts), "requests")
        lines.note("prompts", sum(map(len, prompts)), "tokens")
        with ExitStack() as ends:
            folder = Path(ends.enter_context(tempfile.TemporaryDirectory()))
            cluster = None
            if ray:
                cluster = RayCluster(ray, replicas)
                ends.callback(cluster.close)
            config = EngineConfig(model="pocket", device="cpu", blocks=blocks)
            parts = (cluster.shares if cluster else shares)(config, replicas)
            cases: dict[str, _Case] = {
                _ROUTED: (parts, Router(), dry),
                _IN_TURN: (parts, RoundRobin(replicas), dry),
                _BIG: ([replace(parts[0], blocks=blocks * replicas)], Router(), True),
            }
            launcher, kept = cluster.launcher if cluster else here, Path(logs or folder)
            kept.mkdir(parents=True, exist_ok=True)
            _replay(lines, prompts, cases, rate, tokens, ready, within, kept, launcher)
        lines.end()


def _replay(
    lines: Lines,
    prompts: list[list[int]],
    cases: dict[str, _Case],
    rate: float,
    tokens: int,
    ready: float,
    within: float,
    logs: Path,
    launcher: Launcher,
) -> None:
    found, firsts = dict[str, float](), dict[str, float]()
    for name, (configs, router, made_up) in cases.items():
        speed = _DRY_RATE if made_up else None
        watched = Watched(name, logs, ready, lines.say, launcher=launcher, dry_rate=speed)

        try:
            with watched.running(partial(_routed, configs, router)) as fleet:
                share, load = _replayed(fleet, prompts, rate, tokens, within)
                watched.check()
        except (EngineError, TimeoutError) as error:
            lines.problem(f"{name}: {str(error) or 'an engine does not answer'}{watched.report()}")
            continue
        if load.late:
            lines.problem(f"{name}: {load.late} of {len(prompts)} replies had not ended within {within:g} s")
        found[name] = share
        lines.note(f"found, {name}", share * 100, "%")
        if not made_up and load.firsts:
            lines.note(f"first token, {name}", load.firsts, "s")
            firsts[name] = statistics.median(load.firsts)
    if {_ROUTED, _BIG} <= found.keys():
        lines.note(f"found, {_ROUTED} / {_BIG}", found[_ROUTED] / found[_BIG], "x")
    if {_ROUTED, _IN_TURN} <= firsts.keys():
        lines.note(f"first token, {_ROUTED} / {_IN_TURN}", firsts[_ROUTED] / firsts[_IN_TURN], LONGER)


def _routed(configs: list[EngineConfig], router: Router, start: Start, log: Path) -> Fleet:
    return start_fleet(configs, start, log, 0, router=router)


def _replayed(
    fleet: Fleet, prompts: list[list[int]], rate: float, tokens: int, within: float
) -> tuple[float, Load]:
    """Also return the share of prompt tokens found in a cache."""
    cached, asked = 0, 0

    def note(event: Event) -> None:
        nonlocal cached, asked
        if isinstance(event, Queued):
            asked += event.prompt
        elif isinstance(event, Admitted):
            cached += event.cached

    fleet.subscribe(note)
    load = play(fleet, prompts, rate, 0, tokens, within)
    return cached / asked, load


def choice(bench: Bench) -> None:
    draw = random.Random(0)
    prompts = [[draw.randrange(1000) for _ in range(_LONGEST)] for _ in range(128)]
    router, root = Router(), (b"model", b"", "none", "none")
    for replica in range(4):
        router.put(replica, BlockNaming(root=root, block_size=16, adapters=(), names=()))
    for prompt in prompts:  # each is at one replica afterwards
        route = router.route(prompt)
        assert route is not None
        router.report(route.replica, route.names, ())
        router.ended(route)
    spent = []
    for prompt in prompts:
        began = time.thread_time()
        route = router.route(prompt)
        spent.append((time.thread_time() - began) * 1e6)
        assert route is not None and route.cached == route.blocks
        router.ended(route)
    bench.note("a choice, 125 blocks, 4 replicas", spent, "µs")


def simulated(
    bench: Bench,
    prompts: list[list[int]],
    replicas: int,
    blocks: int,
    rate: float,
    tokens: int,
    speed: float,
) -> None:
    cases = {
        "by blocks and queues": (Router(), replicas, blocks),
        "in turn": (RoundRobin(replicas), replicas, blocks),
        "one big cache": (Router(), 1, blocks * replicas),
    }
    for name, (router, count, room) in cases.items():
        found, firsts = simulate(
            prompts, router, rate=rate, replicas=count, blocks=room, speed=speed, tokens=tokens
        )
        bench.note(f"simulated, found, {name}", found * 100, "%")
        if count == replicas:
            bench.note(f"simulated, first token, {name}", firsts, "s")
