"""Replicas behind one server: what the router finds in their caches, and what a choice costs.

`replay`: a Mooncake trace by the router, in turn, and to one engine with all of the cache. Prompts of one in
`--share` conversations, scaled by 1/16, arrive in the trace's order, `--rate` a second. The replicas are
processes of this machine; give each at least two cores. With `--dry` they compute nothing: then only the
shares found in a cache mean something. `--blocks` is the cache of each replica. With `--ray` ADDRESS a Ray
cluster places them, and with `--ray local` one that starts on this machine.
`simulated`: the same on replicas that compute nothing, `--speed` prompt tokens a second each (simulated.py).
`choice`: processor time of the router for a prompt of 2,000 tokens that one of four full caches holds.
"""

import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.server.simulated import replay as simulate
from engine.api.commands import BlockNaming
from engine.api.config import EngineConfig
from engine.api.events import Admitted, Event, FirstToken, Queued
from engine.api.params import SamplingParams
from engine.fleet.fleet import Fleet
from engine.fleet.local import shares, start_fleet
from engine.fleet.ray_cluster.cluster import RayCluster
from engine.fleet.router import Placement, Router
from engine.host.launching import launch_here
from engine.host.process import EngineProcess
from minichat.bench.harness import Bench
from minichat.bench.load.traces import mooncake_prompts

PARTS = ("choice", "replay", "simulated")
_LONGEST = 2000  # tokens; the built-in model reads 2,048


class Machines:
    """Where replicas run: on this machine, or where a Ray cluster places them."""

    def __init__(self, replicas: int, ray: str, *, dry: bool) -> None:
        self._replicas, self.dry = replicas, dry
        self._cluster = RayCluster(ray, replicas) if ray else None

    def shares(self, config: EngineConfig) -> list[EngineConfig]:
        return (self._cluster.shares if self._cluster else shares)(config, self._replicas)

    def start(self, config: EngineConfig, log: Path) -> EngineProcess:
        launch = self._cluster.launcher(config) if self._cluster else launch_here
        return EngineProcess(config, log, dry_rate=1000.0 if self.dry else None, launch=launch)

    def close(self) -> None:
        if self._cluster:
            self._cluster.close()


class RoundRobin(Router):
    """Replicas in turn, whatever they have."""

    def __init__(self, replicas: int) -> None:
        super().__init__()
        self._turn, self._count = 0, replicas

    def _rank(self, route: Placement) -> tuple[int, int]:
        return (route.replica - self._turn) % self._count, 0

    def route(
        self, tokens: Sequence[int], salt: bytes = b"", adapter: str = "", *, apart: bool = False
    ) -> Placement | None:
        found = super().route(tokens, salt, adapter, apart=apart)
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
        machines = Machines(replicas, ray, dry=dry)
        try:
            replay(bench, trace, share, replicas, blocks, rate, tokens, machines)
        finally:
            machines.close()


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


def replay(
    bench: Bench,
    trace: str,
    share: int,
    replicas: int,
    blocks: int,
    rate: float,
    tokens: int,
    machines: "Machines",
) -> None:
    prompts = mooncake_prompts(Path(trace), share, _LONGEST)
    bench.note("prompts", len(prompts), "requests")
    bench.note("prompts", sum(map(len, prompts)), "tokens")
    config = EngineConfig(model="pocket", device="cpu", blocks=blocks)
    parts = machines.shares(config)
    whole = EngineConfig(model="pocket", device="cpu", blocks=blocks * replicas, threads=parts[0].threads)
    cases: Mapping[str, tuple[list[EngineConfig], Router]] = {
        "by blocks and queues": (parts, Router()),
        "in turn": (parts, RoundRobin(replicas)),
        "one big cache": ([whole], Router()),
    }
    for name, (configs, router) in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            fleet = start_fleet(configs, machines.start, Path(folder, "engine.log"), 0, router=router)
            try:
                found, firsts = _replayed(bench, fleet, prompts, rate, tokens)
            finally:
                fleet.close()
        bench.note(f"found, {name}", found * 100, "%")
        if not machines.dry:
            bench.note(f"first token, {name}", firsts, "s")


def _replayed(
    bench: Bench, fleet: Fleet, prompts: list[list[int]], rate: float, tokens: int
) -> tuple[float, list[float]]:
    """Return the share of prompt tokens found in a cache, and the seconds to each first token."""
    cached, asked, firsts = 0, 0, list[float]()

    def note(event: Event) -> None:
        nonlocal cached, asked
        if isinstance(event, Queued):
            asked += event.prompt
        elif isinstance(event, Admitted):
            cached += event.cached
        elif isinstance(event, FirstToken):
            firsts.append(event.seconds)

    fleet.subscribe(note)
    params = SamplingParams(max_tokens=tokens, seed=0, ignore_eos=True)
    task = bench.progress.add_task("replay", total=len(prompts))
    began, streams = time.perf_counter(), []
    for number, prompt in enumerate(prompts):
        time.sleep(max(0.0, began + number / rate - time.perf_counter()))
        streams.append(fleet.submit(prompt, params))
        bench.progress.update(task, advance=1)
    for stream in streams:
        stream.result()
    bench.progress.remove_task(task)
    return cached / asked, firsts
