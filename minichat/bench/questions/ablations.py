"""What each technique is worth: switched off alone, by an engine option or by how requests are sent."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from engine.api.errors import TemplateError
from engine.kv.tiers.disk import DiskTier
from engine.serving.engine import Engine
from engine.serving.warm_up import WarmUp
from engine.text.chat import ChatFormat
from minichat.bench.cases import Case, CaseResult, CaseSkipped
from minichat.bench.harness import Bench, rounds
from minichat.bench.questions.latency import arrival
from minichat.bench.report import shown
from minichat.bench.setup import Setup
from minichat.bench.traffic import ask, drain, seconds, submit, take

_QUESTION = "Tell me a story about a fox and a lantern."
_ROWS = 8
_BRIEF = 16  # tokens of a prompt whose cost should not matter
_TRIALS = 3  # calls after which an engine knows what its tiers cost

Contenders = tuple[Callable[[], float], Callable[[], float]]  # with the technique, without it


@dataclass(frozen=True, slots=True)
class Ablation:
    name: str
    off: str  # how it is switched off
    measures: str
    unit: str
    contenders: Callable[[Setup], Contenders] | None = None  # None: it cannot be switched off
    why_not: str = ""


def cases(setup: Setup) -> Iterator[Case]:
    for each in _ablations(setup):
        about = f"{each.measures}; off: {each.off}" if each.contenders else ""
        yield Case(each.name, partial(_measure, setup, each), about, each.why_not)


def _measure(setup: Setup, ablation: Ablation, bench: Bench) -> None:
    assert ablation.contenders is not None
    on, off = ablation.contenders(setup)
    found = rounds(bench, {"with": on, "without": off})
    for name, values in found.items():
        bench.note(name, values, ablation.unit)
    pairs = zip(found["with"], found["without"], strict=True)
    gains = [a / b if ablation.unit.endswith("/s") else b / a for a, b in pairs]
    bench.note("worth", gains, "x")


def page(results: Sequence[CaseResult], _: Mapping[str, Any]) -> Table:
    found = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    found.add_column("technique")
    for heading in ("with", "without", "worth", "spread"):
        found.add_column(heading, justify="right", no_wrap=True)
    found.add_column("measured; how it is switched off")
    for result in results:
        if result.why_not:
            found.add_row(result.case, "", "", "", "", f"not measured: {result.why_not}")
            continue
        values = [shown(figure) for figure in result.figures]
        found.add_row(result.case, *(each.value for each in values), values[-1].spread, result.about)
    return found


def _ablations(setup: Setup) -> Iterator[Ablation]:
    text = "random weights have no text" if setup.shape or setup.config.dummy_weights else ""
    gpu = "" if setup.gpu else "needs a GPU"
    prompt, reply, requests = setup.sizes
    mixed, alone = f"{requests} mixed requests", f"a prompt of {prompt}, a reply of {reply}"
    yield Ablation("KV cache", "each token as a request of its own, prefix cache off", alone, "tok/s", _cache)
    yield Ablation("batching", "max_running=1", mixed, "tok/s", partial(_rebuilt, off={"max_running": 1}))
    fixed = f"fixed groups of {_ROWS}"
    ragged = f"{requests} replies, 1 in {_ROWS} of {reply} tokens, the others of {_short(reply)}"
    yield Ablation("continuous batching", fixed, ragged, "tok/s", _groups)
    yield Ablation(
        "paging",
        "as many rows as contexts fit into the same blocks",
        f"{mixed}, few blocks",
        "tok/s",
        _reserved,
    )
    yield Ablation("prefix cache", "switch prefix_cache", "first token of a second turn", "s", _second_turn)
    yield Ablation("forks share blocks", "separate requests", f"{_ROWS} replies to one prompt", "s", _forks)
    stall = "longest stall of 4 replies when a prompt arrives"
    yield Ablation("chunked prefill", "switch chunked_prefill", stall, "s", _chunks)
    overlap = partial(_switched, switch="overlap")
    yield Ablation("overlap", "switch overlap", mixed, "tok/s", overlap, gpu)
    graphs = partial(_switched, switch="graphs")
    yield Ablation("CUDA graphs", "switch graphs", mixed, "tok/s", graphs, gpu)
    backend = partial(_rebuilt, off={"attention": "torch"})
    yield Ablation("Triton attention", "attention=torch", mixed, "tok/s", backend, gpu)
    yield Ablation(
        "fused layers", "", "", "", why_not="no option: a model runs either its fused or its plain parts"
    )
    for kind in ("ngram", "suffix", "draft", "exit"):
        drafts = partial(_speculation, kind=kind)
        yield Ablation(
            f"speculation, {kind}", "speculate=''", "one reply to a question", "tok/s", drafts, text
        )
    for scheme in ("int8", "int4"):
        weights, one = partial(_quantized, scheme=scheme), f"one reply of {reply}"
        yield Ablation(f"weights in {scheme}", "quantization=none", one, "tok/s", weights)
    kv = partial(_rebuilt, on={"kv_scheme": "int8"}, off={"kv_scheme": "none"})
    yield Ablation("cache in int8", "kv_scheme=none", mixed, "tok/s", kv)
    yield Ablation("host tier", "host_blocks=0", f"{mixed}, few blocks", "tok/s", _host)
    turn = "first token of a turn whose blocks have left the device"
    yield Ablation("disk tier", "no kv_disk", turn, "s", _disk)
    urgent = f"first token of an urgent request behind {2 * _ROWS}"
    yield Ablation("latency policy", "policy=fcfs", urgent, "s", _policy)


def _replies(setup: Setup, engine: Engine, *, shuffled: bool = False) -> Callable[[], float]:
    """Output tokens per second of the mixed requests. `shuffled`: each call has another order, the first one
    of each engine the same, and so on: which requests are preempted, and end last, is luck.
    """
    ids, order = setup.ids(), random.Random(0)

    def call() -> float:
        sizes = setup.mixed()
        if shuffled:
            order.shuffle(sizes)
        spent = seconds(engine, [ask(engine, ids, size, count) for _, size, count in sizes])
        return sum(count for _, _, count in sizes) / spent

    return call


def _rebuilt(
    setup: Setup, on: dict[str, object] | None = None, off: dict[str, object] | None = None
) -> Contenders:
    """Two engines, because the option is fixed at the start."""
    return _replies(setup, setup.engine(**on or {})), _replies(setup, setup.engine(**off or {}))


def _quantized(setup: Setup, scheme: str) -> Contenders:
    """One row, where the time goes into reading the weights."""
    _, reply, _ = setup.sizes

    def one_reply(engine: Engine) -> Callable[[], float]:
        ids = setup.ids()
        return lambda: reply / seconds(engine, [ask(engine, ids, _BRIEF, reply)])

    return one_reply(setup.engine(quantization=scheme)), one_reply(setup.engine(quantization="none"))


def _switched(setup: Setup, switch: str) -> Contenders:
    engine = setup.engine()
    replies = _replies(setup, engine)
    return _turned(engine, switch, True, replies), _turned(engine, switch, False, replies)


def _turned(engine: Engine, switch: str, on: bool, call: Callable[[], float]) -> Callable[[], float]:
    """Call with a switch on or off, and set it back."""

    def turned() -> float:
        usual = next(each.on for each in engine.switches if each.name == switch)
        engine.set_switch(switch, on)
        try:
            return call()
        finally:
            engine.set_switch(switch, usual)

    return turned


def _cache(setup: Setup) -> Contenders:
    engine, ids = setup.engine(), setup.ids()
    prompt, reply, _ = setup.sizes

    def cached() -> float:
        return reply / seconds(engine, [ask(engine, ids, prompt, reply)])

    def recomputed() -> float:
        tokens, spent = take(ids, prompt), 0.0
        for _ in range(reply):
            reader = submit(engine, tokens, 1)
            spent += seconds(engine, [reader])
            tokens += reader.tokens
        return reply / spent

    return cached, _turned(engine, "prefix_cache", False, recomputed)


def _short(reply: int) -> int:
    return max(1, reply // _ROWS)


def _groups(setup: Setup) -> Contenders:
    """A fixed group runs as long as its long reply, and the rows of its short ones stay empty."""
    engine, ids = setup.engine(max_running=_ROWS), setup.ids()
    _, reply, requests = setup.sizes
    replies = [_short(reply) if at % _ROWS else reply for at in range(requests)]

    def in_groups(size: int) -> Callable[[], float]:
        def call() -> float:
            groups = (replies[at : at + size] for at in range(0, requests, size))
            spent = sum(
                seconds(engine, [ask(engine, ids, _BRIEF, each) for each in group]) for group in groups
            )
            return sum(replies) / spent

        return call

    return in_groups(requests), in_groups(_ROWS)


def _few_blocks(setup: Setup) -> int:
    """Blocks for a quarter of the mixed requests, or for one whole context."""
    size, sizes = setup.config.block_size, setup.mixed()
    whole = sum(-(-(prompt + reply) // size) for _, prompt, reply in sizes)
    return max(whole // 4, -(-setup.longest // size))


def _reserved(setup: Setup) -> Contenders:
    blocks = _few_blocks(setup)
    rows = max(1, blocks * setup.config.block_size // setup.longest)
    paged, reserved = setup.engine(blocks=blocks), setup.engine(blocks=blocks, max_running=rows)
    return _replies(setup, paged), _replies(setup, reserved)


def _host(setup: Setup) -> Contenders:
    """The engine decides whether to swap or to compute again, as it does for a user."""
    blocks = _few_blocks(setup)
    below, alone = (setup.engine(blocks=blocks, host_blocks=each) for each in (4 * blocks, 0))
    return _decided(setup, below, alone, partial(_replies, shuffled=True))


def _decided(
    setup: Setup, below: Engine, alone: Engine, calls: Callable[[Setup, Engine], Callable[[], float]]
) -> Contenders:
    """Engines that are warmed up like a server's, and that have tried their tiers, which takes some calls."""
    for engine in (below, alone):
        warm_up = WarmUp(engine, engine.runner.graph_sizes)
        while not warm_up.over or engine.busy:
            warm_up.step()
    found = calls(setup, below), calls(setup, alone)
    for call in found * _TRIALS:
        call()
    return found


def _second_turn(setup: Setup) -> Contenders:
    engine = setup.engine()
    turn = _turns(setup, engine)
    return _turned(engine, "prefix_cache", True, turn), _turned(engine, "prefix_cache", False, turn)


def _turns(
    setup: Setup, engine: Engine, between: Callable[[Engine], None] = lambda engine: None
) -> Callable[[], float]:
    """The first token of a chat's second turn. `between`: is called after the first turn."""
    ids = setup.ids()
    prompt, _, _ = setup.sizes

    def call() -> float:
        history = take(ids, 8 * prompt)
        first = submit(engine, history, 4)
        seconds(engine, [first])
        between(engine)
        second = submit(engine, [*history, *first.tokens, *take(ids, 16)], 2)
        seconds(engine, [second])
        return second.ttft

    return call


def _disk(setup: Setup) -> Contenders:
    """The engine decides whether to load or to compute, as it does for a user."""

    def leave(engine: Engine) -> None:
        """The blocks leave the device; those on disk are written: a user reads before the next turn."""
        if isinstance(disk := engine.scheduler.transfers.tiers.get("disk"), DiskTier):
            disk.flush()
        engine.scheduler.pool.forget_all()

    kept = setup.engine(kv_disk=f"{setup.scratch}:1")
    return _decided(setup, kept, setup.engine(kv_disk=None), partial(_turns, between=leave))


def _forks(setup: Setup) -> Contenders:
    engine, ids = setup.engine(), setup.ids()
    prompt, reply, _ = setup.sizes

    def forked() -> float:
        first = ask(engine, ids, 8 * prompt, reply)
        drain(engine, until=lambda: first.times)
        [parent] = engine.scheduler.requests
        others = [replace(first, times=[], tokens=[]) for _ in range(_ROWS - 1)]
        for other in others:
            engine.fork(parent, other)
        return seconds(engine, [first, *others])

    def separate() -> float:
        return seconds(engine, [ask(engine, ids, 8 * prompt, reply) for _ in range(_ROWS)])

    return forked, separate


def _chunks(setup: Setup) -> Contenders:
    engine, ids = setup.engine(), setup.ids()
    prompt, _, _ = setup.sizes

    def stall() -> float:
        running, _ = arrival(engine, ids, prompt)
        return max(max(reader.gaps[2:]) for reader in running)

    return _turned(engine, "chunked_prefill", True, stall), _turned(engine, "chunked_prefill", False, stall)


def _speculation(setup: Setup, kind: str) -> Contenders:
    engine = setup.engine()
    _, reply, _ = setup.sizes
    if kind not in engine.limits.speculation:
        raise CaseSkipped(f"{engine.info.model} has nothing trained for it")
    try:
        with ChatFormat(engine.tokenizer) as chat:
            question = chat.prompt([{"role": "user", "content": _QUESTION}])
    except TemplateError:  # a model without a chat template continues a text
        question = engine.tokenizer.encode_raw(_QUESTION)

    def answered(speculate: str) -> Callable[[], float]:
        def call() -> float:
            engine.scheduler.pool.forget_all()
            engine.scheduler.speculator.forget_replies()
            return reply / seconds(engine, [submit(engine, question, reply, speculate=speculate)])

        return call

    return answered(kind), answered("")


def _policy(setup: Setup) -> Contenders:
    prompt, _, _ = setup.sizes

    def urgent(engine: Engine) -> Callable[[], float]:
        ids = setup.ids()

        def call() -> float:
            for _ in range(2 * _ROWS):
                ask(engine, ids, prompt, 2, deadline=30.0)
            reader = ask(engine, ids, 16, 2, deadline=0.1)
            drain(engine)
            return reader.ttft

        return call

    return urgent(setup.engine(policy="latency")), urgent(setup.engine(policy="fcfs"))
