"""How long a request waits behind a full batch, by its priority. A dry run: the scheduler without a model."""

import time

from engine.api.config import EngineConfig
from engine.api.events import Delta
from engine.api.params import SamplingParams
from engine.dry import dry_engine
from minichat.bench.harness import Bench

_CASES = {  # the policy, and the priority of the request that waits
    "fcfs": ("fcfs", -1),
    "same priority": ("priority", 0),
    "higher priority": ("priority", -1),
}


def run(bench: Bench, *, slots: int = 16, tokens: int = 100, rate: float = 50.0) -> None:
    for name, (policy, priority) in _CASES.items():
        rounds = range(bench.warmup + bench.repeats)
        waits = [_wait(policy, priority, slots, tokens, rate) for _ in rounds][bench.warmup :]
        bench.note(f"first token, {name}", [seconds for seconds, _ in waits], "s")
        bench.note(f"steps until then, {name}", [float(steps) for _, steps in waits], "steps")


def _wait(policy: str, priority: int, slots: int, tokens: int, rate: float) -> tuple[float, int]:
    """Seconds and steps until the first token of a request that arrives when all slots are taken."""
    engine = dry_engine(EngineConfig(model="pocket", policy=policy, max_running=slots), rate=rate)
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, seed=0)
    for number in range(slots):
        engine.submit([5, 6, 7, number], params, _ignore)
    for _ in range(3):
        engine.step()
    deltas: list[Delta] = []
    began, first = time.monotonic(), engine.scheduler.step
    engine.submit([8, 9], params, deltas.append, priority=priority)
    while not any(delta.tokens for delta in deltas):
        engine.step()
    return time.monotonic() - began, engine.scheduler.step - first


def _ignore(delta: Delta) -> None:
    """The sink of the replies that fill the batch."""
