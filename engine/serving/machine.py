"""The interface of an engine that its parts may use."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engine.api.events import Bus
from engine.execution.protocol import Runner
from engine.scheduling.scheduler import Scheduler
from engine.serving.limits import Limits


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The model, device and settings of an engine."""

    model: str
    dtype: str
    device: str
    attention: str
    policy: str
    kv_dtype: str = ""


class Machine(Protocol):
    """Use only between steps, on the engine's thread."""

    scheduler: Scheduler
    runner: Runner
    bus: Bus
    limits: Limits
    info: EngineInfo
    depth: int  # steps launched ahead of the last committed one
    clock: Callable[[], float]
