"""The replicas of a fleet as processes of this machine, each on its own device."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from engine.api.config import EngineConfig
from engine.api.errors import BadInput
from engine.api.places import ExchangePlace
from engine.distributed.crews.gpu_names import gpu_names
from engine.distributed.memory import anonymous
from engine.fleet.apart import ApartFleet
from engine.fleet.fleet import NUMBERS, Fleet
from engine.fleet.router import Router
from engine.host.client import EngineClient
from engine.host.process import EngineProcess
from engine.host.restarting import PAUSES, RestartingEngine
from engine.kv.tiers.segment import PAGE, clear

_GPU_ROOM, _CPU_ROOM = 8.0, 0.25  # GB through which each engine for prompts sends blocks

Start = Callable[[EngineConfig, Path], EngineProcess]


def shares(config: EngineConfig, replicas: int) -> list[EngineConfig]:
    """Divide the devices of this machine: the configuration of each replica."""
    kind, _, index = config.device.partition(":")
    gpus = gpu_count()
    if kind == "cpu" or (kind == "auto" and not gpus):
        cores = len(os.sched_getaffinity(0))
        each = max(1, cores // (replicas * config.ranks))
        return [replace(config, threads=config.threads or each)] * replicas
    first, needed = int(index or 0), replicas * config.ranks
    if first + needed > gpus:
        there = f"this machine has {gpus}" + (f", of which {first} are skipped" if first else "")
        raise BadInput(f"{replicas} replicas need {needed} GPUs, and {there}; use fewer, or --device cpu")
    return [replace(config, device=f"cuda:{first + number * config.ranks}") for number in range(replicas)]


def gpu_count() -> int:
    """The GPUs that engines of this machine may use."""
    return len(gpu_names())


def start_fleet(
    configs: Sequence[EngineConfig],
    start: Start,
    log: Path,
    restarts: int,
    pauses: tuple[float, ...] = PAUSES,
    router: Router | None = None,
) -> Fleet:
    """Start all replicas at once. Each has its own log, and is started again when it dies."""
    return Fleet(_started(configs, start, log, restarts, pauses), router)


def start_apart_fleet(
    configs: Sequence[EngineConfig],
    prefill: int,
    start: Start,
    log: Path,
    restarts: int,
    pauses: tuple[float, ...] = PAUSES,
    *,
    room: float | None = None,
    direct: bool = True,
) -> ApartFleet:
    """The same, where the first `prefill` engines compute the prompts of the others. Each sends blocks
    through `room` GB of memory: that of its GPU if `direct` and if all GPUs reach each other's, otherwise
    memory of the host.
    """
    if not Path("/proc/self/fd").is_dir():
        raise BadInput("engines for prompts and for replies share memory on Linux only; use --replicas")
    on_gpus = all(each.device.startswith("cuda") for each in configs)
    size = round((room or (_GPU_ROOM if on_gpus else _CPU_ROOM)) * 1e9) // PAGE * PAGE
    memory, held = anonymous(prefill * size), ExitStack()  # pages are taken when they are first used
    held.callback(os.close, memory)
    path = f"/proc/{os.getpid()}/fd/{memory}"
    owns = [*range(prefill), *[None] * (len(configs) - prefill)]
    gpus = [int(each.device.partition(":")[2] or 0) for each in configs] if on_gpus and direct else []
    places = [str(ExchangePlace(path, prefill, own, tuple(gpus))) for own in owns]
    sharing = [replace(each, exchange=place) for each, place in zip(configs, places, strict=True)]

    def begin(config: EngineConfig, log: Path) -> EngineProcess:
        """Start an engine, perhaps in place of one that has died: what that one had sent is dropped first."""
        if (own := ExchangePlace.parse(config.exchange or "").own) is not None:
            clear(memory, own, size)
        return start(config, log)

    try:
        engines = [*_started(sharing, begin, log, restarts, pauses).items()]
    except BaseException:
        held.close()
        raise
    return ApartFleet(dict(engines[:prefill]), dict(engines[prefill:]), closed=held.close)


def _started(
    configs: Sequence[EngineConfig], start: Start, log: Path, restarts: int, pauses: tuple[float, ...]
) -> dict[int, EngineClient]:
    """Start an engine with each configuration, by number. If one fails, the others are closed."""

    def replica(number: int) -> EngineClient:
        own = log.with_stem(f"{log.stem}-{number}")

        def process(first: int) -> EngineProcess:
            return start(replace(configs[number], first_request=number * NUMBERS + first), own)

        return RestartingEngine(process, restarts, pauses, f"replica {number}")

    with ThreadPoolExecutor(len(configs), "replica") as starting:
        begun = [starting.submit(partial(replica, number)) for number in range(len(configs))]
    failed = [error for each in begun if (error := each.exception()) is not None]
    if failed:
        for each in begun:
            if each.exception() is None:
                each.result().close()
        raise failed[0]
    return {number: each.result() for number, each in enumerate(begun)}
