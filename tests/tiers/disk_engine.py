"""An engine on the ledger over a disk tier, with names that other such engines find."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.api.events import Event, Transferred
from engine.api.params import SamplingParams
from engine.kv.tiers.disk import DiskTier
from engine.serving.engine import Engine
from tests.engine.ledger import ledger_engine
from tests.outputs import Output

BLOCK = 16
CELLS = BLOCK * 8  # bytes of a block of the ledger
MODEL = b"ledger"


@contextmanager
def disk_engine(
    folder: Path, *, slots: int = 64, waiting: int = 2**28, part: int = 2**26, **config: object
) -> Iterator[tuple[Engine, DiskTier]]:
    """`slots`: how many blocks fit on the disk."""
    tier = DiskTier(folder, slots * 4096, lambda: CELLS, waiting=waiting, part=part)
    tier.flush()
    engine = ledger_engine(below=[tier], **({"preemption": "swap"} | config))
    engine.scheduler.kv.identify(MODEL, "none")
    try:
        yield engine, tier
    finally:
        tier.close()


def ask(engine: Engine, prompt: list[int], count: int = 4, chat: str = "") -> list[int]:
    """Return the reply once the engine has nothing left to do."""
    output = Output()
    engine.submit(prompt, SamplingParams(max_tokens=count, seed=0), output, chat=chat)
    drain_slowly(engine)
    return output.tokens


def drain_slowly(engine: Engine) -> None:
    """Step until nothing is left, however long transfers take."""
    while engine.busy:
        engine.step()
        engine.scheduler.check()


def computed(engine: Engine) -> int:
    return sum(step.tokens for step in engine.runner.steps)


def errors(engine: Engine) -> list[str]:
    seen: list[str] = []

    def see(event: Event) -> None:
        if isinstance(event, Transferred) and event.error:
            seen.append(event.error)

    engine.bus.subscribe(see)
    return seen
