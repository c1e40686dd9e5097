"""Tokens per second: by the number of replies, with mixed lengths, over HTTP, and from a trace."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from minichat.bench.cases import Case, CaseFailed
from minichat.bench.harness import Bench
from minichat.bench.load.http import Length, started_server, traced
from minichat.bench.load.measure import ServerLoad, measure
from minichat.bench.setup import Setup
from minichat.bench.traffic import ask, seconds


def cases(setup: Setup) -> Iterator[Case]:
    prompt, reply, requests = setup.sizes
    for rows in setup.rows_or((1, 4, 16, 64), (1, 8, 32, 128, 256)):
        about = f"in the process, prompts of {prompt} tokens, replies of {reply}"
        yield Case(f"{rows} at once", partial(at_once, setup, rows), about)
    about = f"{requests} requests, prompts and replies of up to {prompt} and {reply} tokens"
    yield Case("mixed lengths", partial(_mixed, setup), f"in the process, {about}")
    why_not = "" if Path("/proc/self/stat").exists() else "needs /proc, for the server's processor time"
    if setup.shape:
        why_not = f"a server needs a model's folder, and --shape {setup.shape} has none"
    crowds = setup.rows_or((8, 32), (32, 256))
    for clients in crowds:
        requested = partial(_http, setup, setup.mixed(), clients)
        yield Case(f"HTTP, {clients} clients", requested, f"minichat serve, {about}", why_not)
    texts = partial(_http, setup, setup.mixed(), max(crowds), prompts="text")
    about = "the same, prompts of as many words as those have tokens, which the server tokenizes"
    yield Case(f"HTTP, {max(crowds)} clients, text", texts, about, why_not)
    good = f"good: first token in {setup.ttft:g} s, others {setup.tpot * 1e3:g} ms apart"
    arriving = partial(_http, setup, _arriving(setup), sys.maxsize)
    trace = Path(setup.trace).name
    name = "arrivals" if trace == "poisson" else trace.partition(".")[0]
    yield Case(f"HTTP, {name}", arriving, f"{trace}, {good}", why_not)


def _arriving(setup: Setup) -> list[Length]:
    """Requests with their times of arrival: at random within about four seconds, or those of a trace."""
    _, _, requests = setup.sizes
    return setup.mixed(requests / 4) if setup.trace == "poisson" else traced(Path(setup.trace))[:requests]


def at_once(setup: Setup, rows: int, bench: Bench) -> None:
    """Output tokens per second of all replies, their prompts included."""
    engine, ids = setup.engine(), setup.ids()
    prompt, reply, _ = setup.sizes

    def call() -> float:
        seconds(engine, [ask(engine, ids, prompt, reply) for _ in range(rows)])
        return rows * reply

    bench.measure("output", call, unit="tok/s")


def _mixed(setup: Setup, bench: Bench) -> None:
    engine, ids, sizes = setup.engine(), setup.ids(), setup.mixed()

    def call() -> float:
        seconds(engine, [ask(engine, ids, size, count) for _, size, count in sizes])
        return sum(count for _, _, count in sizes)

    bench.measure("output", call, unit="tok/s")


def _http(setup: Setup, asked: Sequence[Length], clients: int, bench: Bench, *, prompts: str = "ids") -> None:
    load = ServerLoad(asked, clients, setup.ttft, setup.tpot, prompts=prompts, vocab=min(setup.vocab, 3000))
    try:
        with started_server(*setup.server_options) as (base, processes):
            measure(bench, load, base, processes)
    except SystemExit as error:  # as the benchmarks end; here the other cases continue
        raise CaseFailed(str(error)) from None
