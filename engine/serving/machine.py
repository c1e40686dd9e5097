"""What the parts around an engine may touch of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engine.api.events import Bus
from engine.execution.protocol import Runner
from engine.scheduling.scheduler import Scheduler
from engine.serving.limits import Limits


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine is made of."""

    model: str
    dtype: str
    device: str
    attention: str
    policy: str
    kv_dtype: str = ""


class Machine(Protocol):
    """Between two steps alone, on the engine's own thread."""

    scheduler: Scheduler
    runner: Runner
    bus: Bus
    limits: Limits
    info: EngineInfo
    depth: int  # steps launched ahead of the one that is committed
    clock: Callable[[], float]
