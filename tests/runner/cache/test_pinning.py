"""An engine whose host memory is pinned beside its steps. On a CPU, with a stand-in for a slow driver."""

from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from engine.api.events import Preempted
from engine.execution import budget
from engine.execution.changes import Recache
from engine.kv import pinned
from engine.kv.store import KVStore
from engine.serving.engine import Engine
from tests.runner.small import alone, ask, drain, engine_on, run_to
from tests.waiting import LIMIT, becomes

PROMPT, BLOCKS = [1, *range(30, 120)], 16


class Driver:
    """Registers memory, each piece once the test permits it."""

    def __init__(self) -> None:
        self.asked, self.allowed = 0, SimpleQueue[bool]()

    def register(self, nbytes: int) -> torch.Tensor:
        self.asked += 1
        if not self.allowed.get(timeout=LIMIT):
            raise RuntimeError("CUDA error: out of memory")
        return torch.zeros(nbytes, dtype=torch.uint8)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()

    class Store(KVStore):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named, pin=made.register)

    monkeypatch.setattr(budget, "KVStore", Store)
    return made


def swapping(folder: Path, **config: Any) -> tuple[Engine, list[bool]]:
    """An engine, and whether each request that it preempted was swapped."""
    usual = {"blocks": BLOCKS, "preemption": "swap", "prefix_cache": False}
    engine = engine_on(folder, **usual | config)
    gone = list[bool]()
    engine.bus.subscribe(lambda event: gone.append(event.swapped) if isinstance(event, Preempted) else None)
    return engine, gone


def preempted(engine: Engine) -> list[int]:
    """A reply, preempted after its third token."""
    id, output = ask(engine, PROMPT)
    run_to(engine, output, 3)
    engine.preempt(id)
    drain(engine)
    return output.tokens


def test_requests_are_recomputed_until_memory_is_pinned_and_swapped_then(
    llama: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned, "SLAB", 2**16)
    engine, gone = swapping(llama, host_blocks=32)
    host = engine.runner.store.host  # type: ignore[attr-defined]
    expected = alone(llama, PROMPT).tokens
    assert preempted(engine) == expected
    assert becomes(lambda: driver.asked == 1)
    assert (gone, host.ready) == ([False], 0), "it waited for the driver"
    while host.ready < BLOCKS:
        driver.allowed.put(True)
        before = host.ready
        assert becomes(lambda before=before: host.ready > before)
    assert host.ready < 32, "the rest is not pinned yet"
    assert preempted(engine) == expected
    assert gone == [False, True]
    driver.allowed.put(False)  # memory runs out
    assert becomes(lambda: host.size < 32)
    assert preempted(engine) == expected
    assert gone == [False, True, True]
    engine.close()


def test_a_cache_that_is_rebuilt_while_memory_is_pinned_waits_for_that_piece(
    llama: Path, driver: Driver
) -> None:
    engine, _ = swapping(llama, host_blocks=32)
    assert becomes(lambda: driver.asked == 1)
    driver.allowed.put(True)
    engine.runner.apply(Recache("int8"))
    assert becomes(lambda: driver.asked == 2)
    driver.allowed.put(True)
    _, output = ask(engine, PROMPT)
    drain(engine)
    assert preempted(engine) == output.tokens
    engine.close()
