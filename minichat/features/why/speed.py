"""Why the engine runs at its current speed: the cost of a step against the limits of its device."""

from dataclasses import dataclass

from engine.api.snapshot import Snapshot, StepSplit, StepTimes
from engine.api.speeds import Speeds
from minichat.ui.monitor.figures import duration

_WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a weight
_HOST = 0.5  # the share of a step above which the host is the bottleneck
_MOST = 0.5  # the share of a launch above which attention is the bottleneck
_HELD = 0.35  # the share of the device's peak above which that resource is the bottleneck
_NOTED = 0.05  # the share of a step from which on exchanges are worth a change
_MODELS = ("draft", "exit")  # kinds of drafts that take work of the device
_FULL = 0.1  # the share of its time without work below which a stage of a pipeline is busy


@dataclass(frozen=True, slots=True)
class Use:
    """How much of a resource is used, against its measured peak."""

    amount: float  # per step
    rate: float  # per second
    most: float  # per second; 0: not measured yet

    @property
    def share(self) -> float:
        return self.rate / self.most if self.most else 0.0

    @property
    def known(self) -> bool:
        return bool(self.amount and self.most)


@dataclass(frozen=True, slots=True)
class Speed:
    """The steps of the last second with some, and their explanation."""

    sentence: str
    times: StepTimes
    rows: float
    tokens: float
    steps: float  # per second; of the same steps as the times
    weights: int  # bytes read per step
    held: int  # bytes of all weights; 0: unknown
    experts: bool  # whether a step may leave some of them out
    cache: int
    states: int  # bytes of recurrent states, read and written
    adapters: int  # bytes of LoRA adapters
    memory: Use
    arithmetic: Use  # zero if the scheme's operations are not known
    split: StepSplit | None = None  # of the launch, or of the last of several stages, on a CPU
    staged: bool = False
    drafts: bool = False  # whether steps draft with a model or its first layers, which is not counted
    ranks: int = 0  # that share the model, in each replica
    replicas: int = 1  # that run; all figures but the steps are of one of them
    fleet: bool = False
    stepped: bool = False  # whether some have ended in the last second
    requests: bool = False  # whether there are some
    joining: float = 0.0  # the share of the time that they spend in exchanges
    traffic: float = 0.0  # bytes per second that one sends to the others, on average

    @property
    def idle(self) -> bool:
        return not self.stepped and not self.requests


def explain(shot: Snapshot, speeds: Speeds | None) -> Speed:
    """Explain the speed. `speeds` is None until the device has been measured."""
    times, rates = shot.step_times, shot.rates
    cache = shot.reads.of_cache(rates.contexts)
    weights = shot.reads.of_step(rates.step_tokens) if rates.steps else 0
    seconds = times.total or 1.0
    products = _products(shot)
    attention = shot.reads.of_attention(rates.pairs) if products else 0.0
    others = shot.reads.recurrence * rates.step_tokens + rates.adapted if products else 0.0
    operations = products + attention + others
    running = max(1, shot.running_replicas)
    states = round(shot.reads.states * rates.batch)
    adapters = round(rates.adapters)
    parts = {"weights": weights, "KV cache": cache, "states": states, "adapters": adapters}
    moved = sum(parts.values())
    memory = _use(moved, seconds, speeds.read if speeds else 0.0)
    arithmetic = _use(operations, seconds, speeds.multiply if speeds else 0.0)
    return Speed(
        sentence=_sentence(shot, speeds, memory, arithmetic, max(parts, key=parts.__getitem__), attention),
        times=times,
        rows=rates.batch,
        tokens=rates.step_tokens,
        steps=shot.pace or rates.steps,  # an older engine reports no pace
        weights=weights,
        held=shot.memory.get("weights", 0) // running,
        experts=bool(shot.reads.experts),
        cache=cache,
        states=states,
        adapters=adapters,
        memory=memory,
        arithmetic=arithmetic,
        split=shot.split,
        staged=bool(shot.bubbles),
        drafts=any(
            each.verifications and each.kind in _MODELS
            for request in shot.requests
            if (each := request.speculation) is not None
        ),
        ranks=shot.ranks_each,
        replicas=running,
        fleet=bool(shot.replicas),
        stepped=bool(rates.steps),
        requests=bool(shot.requests),
        joining=shot.joining,
        traffic=shot.traffic,
    )


def _use(amount: float, seconds: float, peak: float) -> Use:
    """Beside running steps, a peak is measured too low. It is at least what the steps reach."""
    rate = amount / seconds
    return Use(amount, rate, max(peak, rate) if peak else 0.0)


def _products(shot: Snapshot) -> float:
    """Operations of products per step; 0 if they are not known."""
    reads, rates = shot.reads, shot.rates
    if not rates.steps:
        return 0.0
    each: float = reads.products
    if not each and shot.quantization == "none" and shot.dtype in _WIDTH:  # not counted
        each = 2 * reads.weights / _WIDTH[shot.dtype]
    with_logits = max(rates.step_tokens - rates.prefill / rates.steps, rates.batch)
    return each * rates.step_tokens - reads.head * max(rates.step_tokens - with_logits, 0)


def host_share(shot: Snapshot) -> float:
    """The share of a step in which the host works alone while the device waits."""
    times = shot.step_times
    # A CPU runs the model within the launch; a GPU only receives the launch there.
    own = times.plan + times.commit + (times.launch if not shot.on_cpu else 0.0)
    return own / times.total if times.total else 0.0


def _sentence(
    shot: Snapshot,
    speeds: Speeds | None,
    memory: Use,
    arithmetic: Use,
    largest: str,
    attention: float,
) -> str:
    if not shot.rates.steps and shot.requests:
        return "A reply is under way, but no step has ended in the last second."
    if not shot.rates.steps:
        return "The engine is idle. Send a message, then open this again."
    if speeds is None:
        return "The device is being measured."
    rows = max(1, round(shot.rates.batch))
    chats = f"{rows} row{'s' * (rows != 1)}"
    return (
        _host_bound(shot, chats)
        or _stage_bound(shot, chats)
        or _faster_alone(shot, memory, arithmetic)
        or _exchange_bound(shot)
        or _memory_bound(rows, chats, memory, arithmetic, largest)
        or _compute_bound(shot, rows, chats, arithmetic)
        or _attention_bound(shot)
        or _far_from_limits(shot, chats, memory, arithmetic, attention)
    )


def _host_bound(shot: Snapshot, chats: str) -> str:
    if (host := host_share(shot)) < _HOST:
        return ""
    return (
        f"Limited by the host: {host:.0%} of a step is planning, launching and committing {chats}; "
        "more concurrent chats cost little."
    )


def _stage_bound(shot: Snapshot, chats: str) -> str:
    if not (bubbles := shot.bubbles):
        return ""
    slowest = min(range(len(bubbles)), key=bubbles.__getitem__)
    mean, others = sum(bubbles) / len(bubbles), sum(bubbles) - bubbles[slowest]
    if bubbles[slowest] < _FULL and others >= _HELD * (len(bubbles) - 1):
        return (
            f"Limited by stage {slowest + 1} of {len(bubbles)}: the others have nothing to do for "
            f"{others / (len(bubbles) - 1):.0%} of the time; more concurrent chats do not change that."
        )
    if mean < _HELD:
        return ""
    return (
        f"Limited by the pipeline: its {len(bubbles)} stages have nothing to do for {mean:.0%} of "
        f"the time with {chats}; more concurrent chats keep them busy."
    )


def _exchange_bound(shot: Snapshot) -> str:
    if shot.joining < _HELD:
        return ""
    return (
        f"Limited by the exchanges of {shot.ranks_each} ranks: these take {shot.joining:.0%} of a step, "
        "with the wait for the slower one; fewer ranks may be faster."
    )


def _memory_bound(rows: int, chats: str, memory: Use, arithmetic: Use, largest: str) -> str:
    if memory.share < max(_HELD, arithmetic.share):
        return ""
    use = f"{chats} use{'s' * (rows == 1)} {memory.share:.0%} of the memory bandwidth"
    if largest == "adapters":
        return f"Memory-bound ({largest}): {use}; steps with fewer adapters are faster."
    if largest != "weights":
        fewer = "fewer" if largest == "states" else "fewer or shorter"
        return f"Memory-bound ({largest}): {use}; {fewer} chats are faster."
    return f"Memory-bound (weights): {use}; {_room(rows, memory, arithmetic)}."


def _compute_bound(shot: Snapshot, rows: int, chats: str, arithmetic: Use) -> str:
    if arithmetic.share < _HELD:
        return ""
    sharing = f"{chats} {'uses' if rows == 1 else 'share'} it, and more would slow each other"
    why = "prompts are being prefilled" if _reads_prompts(shot) else sharing
    return f"Compute-bound: {arithmetic.share:.0%} of the device's peak; {why}."


def _attention_bound(shot: Snapshot) -> str:
    """Whether most of a launch is attention, as a CPU measures it: more rows do not share it.

    The clock of models with recurrent states counts these, too, which do not grow with a chat.
    """
    if shot.split is None or shot.reads.states:
        return ""
    *parts, whole = shot.split
    share = shot.split.attention / (max(whole, sum(parts)) or 1.0)
    if share <= _MOST:
        return ""
    took = f"{share * shot.step_times.launch / shot.step_times.total:.0%} of a step"
    if _reads_prompts(shot):
        return f"Limited by attention over long prompts: it takes {took}; shorter ones are faster."
    context = max((tokens for _, tokens in shot.rates.contexts), default=0.0)
    return (
        f"Limited by attention over {context:,.0f} tokens of context: it takes {took}, and grows with each "
        "chat and its length; more or longer ones slow each other down."
    )


def _far_from_limits(shot: Snapshot, chats: str, memory: Use, arithmetic: Use, attention: float) -> str:
    """What limits a step that is near no limit of the device."""
    if not arithmetic.known:
        return (
            f"Not limited by memory ({memory.share:.0%}); how fast this device multiplies weights in "
            f"{shot.quantization} is not known."
        )
    if _reads_prompts(shot) and attention > arithmetic.amount / 2:
        return (
            f"Limited by attention over long prompts: it is {attention / arithmetic.amount:.0%} of the "
            f"arithmetic, which reaches {arithmetic.share:.0%} of the device's peak."
        )
    what = f"step of {shot.rates.step_tokens:,.0f} tokens" if _reads_prompts(shot) else f"batch of {chats}"
    return (
        f"Limited by small operations: neither memory ({memory.share:.0%}) nor arithmetic "
        f"({arithmetic.share:.0%}) is near its limit; a {what} does not fill the device."
    )


def _reads_prompts(shot: Snapshot) -> bool:
    """Whether most tokens that the steps compute are of prompts."""
    return shot.rates.prefill > shot.rates.steps * shot.rates.step_tokens / 2


def _faster_alone(shot: Snapshot, memory: Use, arithmetic: Use) -> str:
    """Whether one device would do what the other ranks do in less time than the exchanges take. Work that
    does not fill the device takes about as long for all ranks' parts as for one's.
    """
    ranks = shot.ranks_each
    if ranks < 2 or shot.bubbles or _reads_prompts(shot):
        return ""
    exchanges = shot.joining * shot.step_times.total
    alone = (ranks - 1) * memory.amount / memory.most
    small = arithmetic.known and max(memory.share, arithmetic.share) < _HELD
    if exchanges > alone:
        why = f"one device would read what the others do in {duration(alone)}"
    elif small and shot.joining >= _NOTED:
        why = f"the rest uses only {memory.share:.0%} of a device's memory bandwidth"
    else:
        return ""
    return (
        f"Limited by the exchanges of {ranks} ranks: these take {duration(exchanges)} of a step, and {why}; "
        "if all fits on one device, that is faster."
    )


def _room(rows: int, memory: Use, arithmetic: Use) -> str:
    """How many rows can share one read of the weights before the arithmetic takes longer than the read."""
    if not arithmetic.share:
        return "more concurrent chats share one read"
    most = int(rows * memory.share / arithmetic.share)
    if most <= 2 * rows:
        return "more concurrent chats slow each other down"
    return f"up to about {most:,} concurrent chats cost almost nothing"
