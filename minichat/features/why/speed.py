"""Why the engine is as fast as it is: what a step takes, against what its device could do."""

from dataclasses import dataclass

from engine.api.snapshot import Snapshot, Speeds, StepSplit, StepTimes

_WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a weight
_HOST = 0.5  # of a step: from here on the host is what everything waits for
_HELD = 0.35  # of what a device could do: from here on that is what holds a step
_RUNNING = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Use:
    """How much of something a second is used, of how much there could be."""

    amount: float  # a step
    rate: float  # a second
    most: float  # a second; 0: not measured yet

    @property
    def share(self) -> float:
        return self.rate / self.most if self.most else 0.0


@dataclass(frozen=True, slots=True)
class Speed:
    """Running means of the newest steps, and what they mean."""

    sentence: str
    times: StepTimes
    rows: float
    tokens: float
    steps: float
    weights: int  # bytes a step reads
    cache: int
    memory: Use
    arithmetic: Use  # nothing where the weights are in a form whose number is not known
    split: StepSplit | None = None  # of the launch, on a CPU

    @property
    def idle(self) -> bool:
        return not self.steps


def explain(shot: Snapshot, speeds: Speeds | None) -> Speed:
    """`speeds`: None until the device has been measured."""
    times, rates = shot.step_times, shot.rates
    cache = sum(shot.reads.of_context(each.launched) for each in shot.requests if each.phase in _RUNNING)
    weights = shot.reads.weights if rates.steps else 0
    seconds = times.total or 1.0
    known = shot.quantization == "none" and shot.dtype in _WIDTH
    operations = 2 * (weights / _WIDTH[shot.dtype]) * rates.step_tokens if known else 0.0
    memory = Use(weights + cache, (weights + cache) / seconds, speeds.read if speeds else 0.0)
    arithmetic = Use(operations, operations / seconds, speeds.multiply if speeds else 0.0)
    return Speed(
        sentence=_sentence(shot, speeds, memory, arithmetic, weights >= cache),
        times=times,
        rows=rates.batch,
        tokens=rates.step_tokens,
        steps=rates.steps,
        weights=weights,
        cache=cache,
        memory=memory,
        arithmetic=arithmetic,
        split=shot.split,
    )


def host_share(shot: Snapshot) -> float:
    """Of a step, what passes while the host works alone, or the device waits to be told what to do."""
    times = shot.step_times
    # A CPU runs the model within the launch; a GPU is only told of it there.
    own = times.plan + times.commit + (times.launch if shot.device != "cpu" else 0.0)
    return own / times.total if times.total else 0.0


def _sentence(
    shot: Snapshot, speeds: Speeds | None, memory: Use, arithmetic: Use, weights_first: bool
) -> str:
    if not shot.rates.steps:
        return "Nothing runs: say something, and look again."
    if speeds is None:
        return "The device is being measured."
    host, rows = host_share(shot), max(1, round(shot.rates.batch))
    chats = f"{rows} row{'s' * (rows != 1)}"
    if host >= _HOST:
        return (
            f"Held by the host: {host:.0%} of a step goes into planning, launching and committing {chats}; "
            "more chats at once cost little."
        )
    if memory.share >= max(_HELD, arithmetic.share):
        use = f"{_uses(chats, rows)} {memory.share:.0%} of the memory's speed"
        if not weights_first:
            return f"Held by reading the KV cache: {use}; fewer or shorter chats are quicker."
        return f"Held by reading weights: {use}; {_room(rows, memory, arithmetic)}."
    if arithmetic.share >= _HELD:
        reading = shot.rates.prefill > shot.rates.decode
        why = "prompts are being read" if reading else f"{chats} share it, and more would slow each other"
        return f"Held by arithmetic: {arithmetic.share:.0%} of what the device can multiply; {why}."
    return (
        f"Held by small operations: neither memory ({memory.share:.0%}) nor arithmetic "
        f"({arithmetic.share:.0%}) is near its limit; a batch of {chats} does not fill the device."
    )


def _uses(chats: str, rows: int) -> str:
    return f"{chats} use{'s' * (rows == 1)}"


def _room(rows: int, memory: Use, arithmetic: Use) -> str:
    """Until the arithmetic takes as long as the reading, more rows share one reading of the weights."""
    if not arithmetic.share:
        return "more chats at once cost nearly nothing"
    most = int(rows * memory.share / arithmetic.share)
    if most <= 2 * rows:
        return "more chats at once begin to cost"
    return f"up to about {most:,} at once cost nearly nothing more"
