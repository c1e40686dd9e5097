"""Joules and money per million output tokens, and the mean power."""

import time
from collections.abc import Iterator
from functools import partial

from engine.devices import pick
from minichat.bench.cases import Case
from minichat.bench.harness import Bench
from minichat.bench.meters import EnergyMeter, energy_meter
from minichat.bench.setup import Setup
from minichat.bench.traffic import ask, seconds

_IDLE = 1.0  # seconds


def cases(setup: Setup) -> Iterator[Case]:
    meter = energy_meter(pick(setup.config.device))
    why_not = meter if isinstance(meter, str) else ""
    yield Case("idle", partial(_idle, meter), "the machine without requests", why_not)
    prompt, reply, _ = setup.sizes
    read = "energy cannot be read" if isinstance(meter, str) else meter.name
    for rows in setup.rows_or((1, 8, 32), (1, 32, 256)):
        about = f"prompts of {prompt} tokens, replies of {reply}; {read}"
        priced = "" if setup.price is not None or not why_not else "give --price for the cost"
        yield Case(f"{rows} at once", partial(_rows, setup, rows, meter), about, priced)


def _idle(meter: EnergyMeter | str, bench: Bench) -> None:
    assert isinstance(meter, EnergyMeter)

    def call() -> dict[str, float]:
        before, began = meter.joules(), time.perf_counter()
        time.sleep(_IDLE)
        return {"power": (meter.joules() - before) / (time.perf_counter() - began)}

    bench.observe({"power": "W"}, call)


def _rows(setup: Setup, rows: int, meter: EnergyMeter | str, bench: Bench) -> None:
    engine, ids = setup.engine(), setup.ids()
    prompt, reply, _ = setup.sizes
    units = {"output": "tok/s"}
    if isinstance(meter, EnergyMeter):
        units |= {"energy": "J/Mtok", "power": "W"}
    if setup.price is not None:
        units["cost"] = "money/Mtok"

    def call() -> dict[str, float]:
        before = meter.joules() if isinstance(meter, EnergyMeter) else 0.0
        spent = seconds(engine, [ask(engine, ids, prompt, reply) for _ in range(rows)])
        used = meter.joules() - before if isinstance(meter, EnergyMeter) else 0.0
        millions = rows * reply / 1e6
        found = {"output": rows * reply / spent, "energy": used / millions, "power": used / spent}
        return found | {"cost": (setup.price or 0.0) * spent / 3600 / millions}

    bench.observe(units, call)
