"""An engine on a machine whose speeds a test chooses. Only its clock moves, and tokens are made up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.api.params import SamplingParams
from engine.execution.protocol import StepResult
from engine.execution.transfers import TransferRunner
from engine.kv.tiers.tier import CompletedTransfer, Transfer, TransferEnd, TransferOrder
from engine.scheduling.step import Step
from engine.serving.engine import Engine
from tests.engine.byte_tier import ByteTier
from tests.engine.ledger import Clock, drain, ledger_engine
from tests.outputs import Output


@dataclass(frozen=True)
class Machine:
    """Seconds."""

    step: float  # of a step, however small
    row: float  # more for each decode
    token: float  # more for each token of a prompt
    order: float = 0.0  # of the host, for the call that orders a transfer
    latency: float = 0.0  # of a transfer
    store: float = 0.0  # of a transfer, for each block
    load: float = 0.0
    launch: float = 0.0  # of the host, for a step
    ahead: bool = True  # steps and transfers run beside the host; else it waits for them, as on a CPU

    def moving(self, order: TransferOrder) -> float:
        return self.latency + len(order.names) * (self.load if order.kind == "load" else self.store)


class SimulatedRunner:
    """Steps run one after the other, and copies after the steps launched before them."""

    def __init__(self, engine: Engine, machine: Machine) -> None:
        self._clock, self.machine = engine.clock, machine
        self._ledger = engine.runner
        self._transfers = TransferRunner(list(engine.scheduler.transfers.tiers.values()), _Blocks)
        self._computed = self._copied = 0.0  # when the device is done with what it was given
        self._ends: dict[int, tuple[float, float]] = {}  # when each transfer ends, and its seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def launch(self, step: Step) -> tuple[Step, float, float]:
        machine, now = self.machine, self._clock.now
        self._clock.now += machine.launch
        seconds = machine.step + machine.row * (step.tokens - step.prefill) + machine.token * step.prefill
        self._computed = max(self._clock.now, self._computed) + seconds
        return step, now, self._computed

    def collect(self, handle: tuple[Step, float, float]) -> StepResult:
        step, launched, ended = handle
        self._clock.now = max(self._clock.now, ended)
        tokens = [7 for row in step.rows if row.samples]
        return StepResult(tokens, seconds=self._clock.now - launched)

    def follow(self, transfer: int) -> bool:
        return False

    def transfer(self, order: TransferOrder) -> None:
        self._transfers.begin(order)
        if order.kind not in ("store", "load"):
            return
        seconds = self.machine.moving(order)
        self._copied = max(self._clock.now, self._computed, self._copied) + seconds
        self._ends[order.id] = self._copied, seconds
        self._clock.now += self.machine.order if self.machine.ahead else self.machine.order + seconds

    def transferred(self, *, wait: bool = False) -> Sequence[TransferEnd]:
        if wait and self._ends:
            self._clock.now = max(self._clock.now, *(end for end, _ in self._ends.values()))
        ended = {id: seconds for id, (end, seconds) in self._ends.items() if end <= self._clock.now}
        for id in ended:
            del self._ends[id]
        self._waiting = [*getattr(self, "_waiting", ()), *self._transfers.ended(wait=True)]
        ends = [replace(each, seconds=ended[each.id]) for each in self._waiting if each.id in ended]
        self._waiting = [each for each in self._waiting if each.id not in ended]
        return ends


class _Blocks:
    """Blocks without contents."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self.numbers = numbers

    def read(self) -> Callable[[], np.ndarray]:
        return lambda: np.zeros((len(self.numbers), 1), np.uint8)

    def buffer(self, count: int, nbytes: int) -> np.ndarray:
        return np.empty((count, nbytes), np.uint8)

    def write(self, data: np.ndarray, at: int = 0) -> None: ...

    def move(self, *works: Callable[[], None]) -> Transfer:
        return CompletedTransfer(0.0)


def simulated(machine: Machine, **options: Any) -> Engine:
    engine = ledger_engine(clock=Clock(), depth=int(machine.ahead), **options)
    engine.runner.check_published = lambda pool: None
    engine.runner = SimulatedRunner(engine, machine)
    return engine


def ask(engine: Engine, tokens: Sequence[int], reply: int = 2, **options: Any) -> Output:
    params = SamplingParams(max_tokens=reply, ignore_eos=True, seed=0)
    engine.submit(tokens, params, output := Output(), **options)
    return output


def seconds(engine: Engine) -> float:
    """Until all requests have ended."""
    began = engine.clock.now
    drain(engine, most=100_000)
    return engine.clock.now - began


class Disk(ByteTier):
    """Keeps blocks after the engine has dropped them."""

    persistent = True
