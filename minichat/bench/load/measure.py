"""The throughput, latencies and goodput of a server under load."""

import multiprocessing
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from minichat.bench.harness import Bench
from minichat.bench.load.client import Outcome, TimedRequest, work
from minichat.bench.load.http import Length, cpu_seconds, message, spread_of

_LONGEST = 1800.0  # seconds of a round
Round = tuple[float, dict[str, float], list[Outcome]]  # seconds, processor seconds by process, replies


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """What is sent to the server, and when a request counts as good."""

    requests: Sequence[Length]
    clients: int  # most requests at once
    ttft: float = 0.5  # limits of goodput: seconds to the first token
    tpot: float = 0.05  # and mean seconds between the others
    model: str = ""
    key: str = ""
    prompts: str = "ids"  # or text
    vocab: int = 3000  # ids of prompts stay below it


def measure(bench: Bench, load: ServerLoad, base: str, processes: Mapping[str, int]) -> None:
    """Send the load once per round to the server at `base`. `processes`: whose processor time is reported."""
    parts = urlsplit(base)
    address = (parts.hostname or "127.0.0.1", parts.port or 80)
    head = f"POST {parts.path.rstrip('/')}/v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
    head += f"Authorization: Bearer {load.key}\r\n" if load.key else ""
    pipe, there = multiprocessing.Pipe()
    client = multiprocessing.get_context("spawn").Process(target=work, args=(there, address), daemon=True)
    client.start()
    there.close()
    rounds: list[Round] = []
    for turn in range(bench.warmup + bench.repeats):
        orders = [
            TimedRequest(
                at,
                message(head, load.model, load.prompts, size, count, seed=(turn, number), vocab=load.vocab),
            )
            for number, (at, size, count) in enumerate(load.requests)
        ]
        before, began = cpu_seconds(processes), time.perf_counter()
        pipe.send((orders, load.clients))
        if not pipe.poll(_LONGEST):
            client.kill()
            raise SystemExit(f"the server did not serve the load within {_LONGEST:g} s")
        outcomes = pipe.recv()
        spent = time.perf_counter() - began
        used = {name: now - before[name] for name, now in cpu_seconds(processes).items()}
        if turn >= bench.warmup:
            rounds.append((spent, used, outcomes))
    pipe.send(None)
    client.join()
    report(bench, rounds, load.ttft, load.tpot)


def report(bench: Bench, rounds: Sequence[Round], ttft: float, tpot: float) -> None:
    served = [one for _, _, outcomes in rounds for one in outcomes]
    for why in {one.error for one in served if one.error}:
        print(f"a request failed: {why}", file=sys.stderr)
    tokens = [sum(one.completion for one in outcomes) for _, _, outcomes in rounds]
    if not all(tokens):
        raise SystemExit("no request of a round got a token")
    spent = [seconds for seconds, _, _ in rounds]
    firsts, between = [], []
    for one in served:
        if one.first is not None and one.ended is not None:
            firsts.append(one.first)
            between.append((one.ended - one.first) / max(1, one.completion - 1))
    bench.note("tokens", [many / seconds for many, seconds in zip(tokens, spent, strict=True)], "tok/s")
    bench.note("requests", len(firsts) / sum(spent), "req/s")
    for name in rounds[0][1]:
        each = [used[name] / many for (_, used, _), many in zip(rounds, tokens, strict=True)]
        bench.note(f"processor time a token, {name}", each, "s")
    for name, values in {
        "time to first token": firsts,
        "time a token after the first": between,
        "gap between pieces": [gap for one in served for gap in one.gaps],
        "longest gap of a stream": [max(one.gaps, default=0.0) for one in served],
    }.items():
        for label, value in spread_of(values):
            bench.note(f"{name}, {label}", value, "s")
    good = sum(first <= ttft and gap <= tpot for first, gap in zip(firsts, between, strict=True))
    bench.note(f"goodput, {ttft:g} s and {tpot * 1e3:g} ms", good / sum(spent), "req/s")
    bench.note("failed", len(served) - len(firsts), "requests")
