"""Starts a fleet that computes prompts and replies apart: its devices, and the memory between them."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from engine.api.config import EngineConfig, ExchangePlace
from engine.api.errors import BadInput
from engine.distributed.memory import anonymous
from engine.fleet.apart import ApartFleet
from engine.fleet.local import Start, gpu_count, started
from engine.host.restarting import PAUSES

_GPU_ROOM, _CPU_ROOM = 4.0, 0.25  # GB of each engine for prompts
_SPAN = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")


def listed(option: str, text: str) -> list[int]:
    """Read a list of GPUs, such as 0,2-3. Raises BadInput."""
    found: list[int] = []
    for part in text.split(","):
        if not (span := _SPAN.fullmatch(part.strip())):
            raise BadInput(f"{option} takes numbers of GPUs, such as 0 or 0,2-3; got {text!r:.60}")
        found += range(int(span[1]), int(span[2] or span[1]) + 1)
    if len(set(found)) < len(found):
        raise BadInput(f"{option} names a GPU twice: {text:.60}")
    if not found:
        raise BadInput(f"{option}: {text:.60} is an empty range")
    return found


def group_configs(
    config: EngineConfig, prompts: Sequence[int], replies: Sequence[int]
) -> tuple[list[EngineConfig], list[EngineConfig]]:
    """The configuration of each engine. Without GPUs, numbers only count engines, which share the cores."""
    if both := sorted({*prompts} & {*replies}):
        raise BadInput(f"GPU {both[0]} is in --prefill-gpus and in --decode-gpus; an engine needs its own")
    gpus, numbers = gpu_count(), (*prompts, *replies)
    if config.device == "cpu" or (config.device == "auto" and not gpus):
        each = config.threads or max(1, len(os.sched_getaffinity(0)) // len(numbers))
        alone = replace(config, device="cpu", threads=each)
        return [alone] * len(prompts), [alone] * len(replies)
    if missing := [each for each in numbers if each >= gpus]:
        raise BadInput(f"there is no GPU {missing[0]}: this machine has {gpus}, and the first is 0")
    made = [replace(config, device=f"cuda:{each}") for each in numbers]
    return made[: len(prompts)], made[len(prompts) :]


def apart_fleet(
    prompts: Sequence[EngineConfig],
    replies: Sequence[EngineConfig],
    start: Start,
    log: Path,
    restarts: int,
    *,
    room: float | None = None,
    pauses: tuple[float, ...] = PAUSES,
) -> ApartFleet:
    """Start all engines at once. `room`: GB through which each engine for prompts sends blocks."""
    if not Path("/proc/self/fd").is_dir():
        raise BadInput("engines can share memory on Linux only; use --replicas")
    on_gpu = prompts[0].device.startswith("cuda")
    size = round((room or (_GPU_ROOM if on_gpu else _CPU_ROOM)) * 1e9)
    memory = anonymous(len(prompts) * size)  # pages are taken when they are first used
    path = f"/proc/{os.getpid()}/fd/{memory}"

    def place(own: int | None) -> str:
        return str(ExchangePlace(path, len(prompts), own))

    configs = [replace(each, exchange=place(own)) for own, each in enumerate(prompts)]
    configs += [replace(each, exchange=place(None)) for each in replies]
    try:
        engines = started(configs, start, log, restarts, pauses)
    except BaseException:
        os.close(memory)
        raise
    parts = [*engines.items()]
    return ApartFleet(
        dict(parts[: len(prompts)]),
        dict(parts[len(prompts) :]),
        engines[0].snapshot().block_size,
        closed=lambda: os.close(memory),
    )
