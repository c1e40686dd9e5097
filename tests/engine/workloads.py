"""Random engines on the ledger, for tests that other requests change timing and never output."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from hypothesis import strategies as st

from engine.kv.groups import BlockGroups
from engine.serving.engine import Engine
from tests.engine.ledger import Clock, drain, ledger_engine
from tests.outputs import transfers_idle

BLOCK = 16
AFTER = st.one_of(st.none(), st.none(), st.integers(0, 12))  # number of steps, or never

Job = TypeVar("Job")


def _forgets(
    *, groups: BlockGroups | None = None, window: object = None, budget: object = None, **_: object
) -> bool:
    return bool(window or budget or (groups and not groups.plain))


@dataclass(frozen=True)
class EngineSetup:
    """The size and settings of an engine to make."""

    blocks: int
    host: int
    slots: int
    step_tokens: int
    depth: int
    policy: str
    preemption: str
    chunked: bool
    prefix_cache: bool
    slowdown: float | None = None
    keeps_state: bool = False  # unless there is a window or a budget, which models with states refuse

    @property
    def tokens(self) -> int:
        """The tokens that fit into its cache."""
        return self.blocks * BLOCK

    def engine(self, **more: object) -> Engine:
        engine = ledger_engine(
            blocks=self.blocks,
            host=self.host,
            slots=self.slots,
            step_tokens=self.step_tokens,
            depth=self.depth,
            policy=self.policy,
            clock=Clock(),
            preemption=self.preemption,
            chunked_prefill=self.chunked,
            prefix_cache=self.prefix_cache,
            keeps_state=self.keeps_state and not _forgets(**more),
            **more,
        )
        engine.scheduler.pace.limit(self.slowdown)
        return engine


@dataclass(frozen=True)
class Workload(Generic[Job]):
    jobs: tuple[Job, ...]
    place: EngineSetup


def engine_setups(blocks: Iterable[int]) -> st.SearchStrategy[EngineSetup]:
    return st.builds(
        EngineSetup,
        blocks=st.sampled_from([*blocks]),
        host=st.sampled_from([0, 4, 20]),
        slots=st.integers(1, 8),
        step_tokens=st.sampled_from([8, 17, 32, 200]),
        depth=st.integers(0, 1),
        policy=st.sampled_from(["fcfs", "priority", "latency"]),
        preemption=st.sampled_from(["auto", "recompute", "swap"]),
        chunked=st.booleans(),
        prefix_cache=st.booleans(),
        slowdown=st.sampled_from([None, None, 1.5]),
        keeps_state=st.booleans(),
    )


@st.composite
def workloads(
    draw: st.DrawFn, blocks: Iterable[int], jobs: Callable[[EngineSetup], st.SearchStrategy[Job]], most: int
) -> Workload[Job]:
    """Up to `most` jobs that fit into the cache."""
    place = draw(engine_setups(blocks))
    return Workload(tuple(draw(st.lists(jobs(place), min_size=1, max_size=most))), place)


@st.composite
def prompts(draw: st.DrawFn, room: int, *, alphabet: int = 10, common: int = 7) -> tuple[int, ...]:
    """Prompts with common prefixes, which the prefix cache finds. They end anywhere in a block."""
    shared = draw(st.sampled_from([0, 0, 15, 16, 17, 32, 40]))
    own = draw(st.lists(st.integers(0, alphabet - 1), min_size=1, max_size=30))
    return tuple([*([common] * shared), *own][: room - 1])


def run(engine: Engine, steps: int, before: Callable[[int], None]) -> None:
    """Run to the end with a check after every step, then check that no request holds anything."""
    for step in range(steps):
        before(step)
        engine.step()
        engine.clock.now += 0.05
        engine.scheduler.check()
    drain(engine)
    scheduler = engine.scheduler
    assert scheduler.pool.in_use == 0
    assert transfers_idle(engine)
    assert not scheduler.requests and not scheduler.running and not scheduler.waiting.parked
    assert not len(scheduler.waiting)
    assert engine.outputs.idle
