"""The replicas of a fleet as processes of this machine, each on its own device."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from engine.api.config import EngineConfig
from engine.api.errors import BadInput
from engine.fleet.fleet import NUMBERS, Fleet
from engine.fleet.router import Router
from engine.host.client import EngineClient
from engine.host.process import EngineProcess
from engine.host.restarting import PAUSES, RestartingEngine

_GPUS = Path("/proc/driver/nvidia/gpus")

Start = Callable[[EngineConfig, Path], EngineProcess]


def shares(config: EngineConfig, replicas: int) -> list[EngineConfig]:
    """Divide the devices of this machine: the configuration of each replica."""
    kind, _, index = config.device.partition(":")
    gpus = gpu_count()
    if kind == "cpu" or (kind == "auto" and not gpus):
        cores = len(os.sched_getaffinity(0))
        each = max(1, cores // (replicas * config.tp))
        return [replace(config, threads=config.threads or each)] * replicas
    first, needed = int(index or 0), replicas * config.tp
    if first + needed > gpus:
        there = f"this machine has {gpus}" + (f", of which {first} are skipped" if first else "")
        raise BadInput(f"{replicas} replicas need {needed} GPUs, and {there}; use fewer, or --device cpu")
    return [replace(config, device=f"cuda:{first + number * config.tp}") for number in range(replicas)]


def gpu_count() -> int:
    """The GPUs that engines of this machine may use, without loading torch."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len([each for each in visible.split(",") if each.strip() not in ("", "-1")])
    return len([*_GPUS.iterdir()]) if _GPUS.is_dir() else 0


def local_fleet(
    configs: Sequence[EngineConfig],
    start: Start,
    log: Path,
    restarts: int,
    pauses: tuple[float, ...] = PAUSES,
    router: Router | None = None,
) -> Fleet:
    """Start all replicas at once. Each has its own log, and is started again when it dies."""
    return Fleet(started(configs, start, log, restarts, pauses), router)


def started(
    configs: Sequence[EngineConfig],
    start: Start,
    log: Path,
    restarts: int,
    pauses: tuple[float, ...] = PAUSES,
) -> dict[int, EngineClient]:
    """Start an engine with each configuration, by number. If one fails, the others are closed."""

    def replica(number: int) -> EngineClient:
        own = log.with_stem(f"{log.stem}-{number}")

        def process(first: int) -> EngineProcess:
            return start(replace(configs[number], first_request=number * NUMBERS + first), own)

        return RestartingEngine(process, restarts, pauses)

    with ThreadPoolExecutor(len(configs), "replica") as starting:
        begun = [starting.submit(partial(replica, number)) for number in range(len(configs))]
    failed = [error for each in begun if (error := each.exception()) is not None]
    if failed:
        for each in begun:
            if each.exception() is None:
                each.result().close()
        raise failed[0]
    return {number: each.result() for number, each in enumerate(begun)}
