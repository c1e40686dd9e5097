"""Load on an OpenAI endpoint: closed loop, Poisson arrivals or a trace; throughput, latencies, goodput.

`--url` is any server with /v1/completions (http only). Without it, `minichat serve --dry-run` is started: the
engine makes up the tokens at `--rate` a second for each stream, so the figures are those of the HTTP front.
`--arrivals`: closed (`--clients` at a time), poisson (`--per-second`), or the file of a trace in the form of
Azure's or Mooncake's, `.csv` or `.jsonl`, also as `.xz`. Lengths come from the trace, else from N of `gpu`.
Goodput is the share of requests whose first token and mean time between tokens stay within the limits.
"""

import csv
import json
import multiprocessing
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.harness import Bench
from benchmarks.server.load_client import Order, Outcome, work
from benchmarks.traces import opened

_WORDS = "the sea old stone of river light under hill paper in quiet window a first rain to".split()
_VOCAB = 3000  # ids of prompts stay below it, so that any model takes them
_BLOCKS = 40_000  # of the dry run, so that no request waits for them
_TICKS = os.sysconf("SC_CLK_TCK")

Length = tuple[float, int, int]  # when it arrives, tokens of the prompt, tokens of the reply


def run(
    bench: Bench,
    *,
    url: str = "",
    model: str = "",
    key: str = "",
    clients: int = 256,
    requests: int = 256,
    arrivals: str = "closed",
    per_second: float = 10.0,
    prompts: str = "ids",
    rate: float = 110.0,
    longest: int = 1024,
    ttft: float = 0.5,
    tpot: float = 0.05,
) -> None:
    asked = lengths(arrivals, requests, per_second, longest)
    with endpoint(url, rate) as (base, processes):
        parts = urlsplit(base)
        address = (parts.hostname or "127.0.0.1", parts.port or 80)
        head = f"POST {parts.path.rstrip('/')}/v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        head += f"Authorization: Bearer {key}\r\n" if key else ""
        most = clients if arrivals == "closed" else sys.maxsize
        pipe, there = multiprocessing.Pipe()
        client = multiprocessing.get_context("spawn").Process(target=work, args=(there, address), daemon=True)
        client.start()
        there.close()
        rounds = []
        for turn in range(bench.warmup + bench.repeats):
            orders = [
                Order(at, message(head, model, prompts, size, count, seed=(turn, number)))
                for number, (at, size, count) in enumerate(asked)
            ]
            before, began = cpu_seconds(processes), time.perf_counter()
            pipe.send((orders, most))
            outcomes = pipe.recv()
            spent = time.perf_counter() - began
            used = {name: now - before[name] for name, now in cpu_seconds(processes).items()}
            if turn >= bench.warmup:
                rounds.append((spent, used, outcomes))
        pipe.send(None)
        client.join()
    report(bench, rounds, ttft, tpot)


def lengths(arrivals: str, requests: int, per_second: float, longest: int) -> list[Length]:
    draw = random.Random(0)
    if arrivals in ("closed", "poisson"):
        at, found = 0.0, []
        for _ in range(requests):
            found.append((at, draw.randint(100, 1024), draw.randint(100, longest)))
            at += draw.expovariate(per_second) if arrivals == "poisson" else 0.0
        return found
    return traced(Path(arrivals))[:requests]


def traced(file: Path) -> list[Length]:
    """The requests of a trace, from its beginning."""
    with opened(file) as lines:
        if ".csv" in file.suffixes:
            rows = [
                (
                    datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp(),
                    int(row["ContextTokens"]),
                    int(row["GeneratedTokens"]),
                )
                for row in csv.DictReader(lines)
            ]
        else:
            records = map(json.loads, lines)
            rows = [(one["timestamp"] / 1e3, one["input_length"], one["output_length"]) for one in records]
    return [(at - rows[0][0], size, count) for at, size, count in rows]


def message(head: str, model: str, prompts: str, size: int, count: int, seed: object) -> bytes:
    draw = random.Random(repr(seed))
    asked: dict[str, Any] = {
        "prompt": " ".join(draw.choices(_WORDS, k=size))
        if prompts == "text"
        else [draw.randrange(3, _VOCAB) for _ in range(size)],
        "max_tokens": count,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body = json.dumps(asked | ({"model": model} if model else {})).encode()
    fields = f"Content-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + fields).encode() + body


@contextmanager
def endpoint(url: str, rate: float) -> Generator[tuple[str, dict[str, int]], None, None]:
    """The base URL, and the processes of the server if it was started here."""
    if url:
        yield url.removesuffix("/v1"), {}
    else:
        with started_server("--dry-run", "--rate", f"{rate:g}", "--blocks", str(_BLOCKS)) as started:
            yield started


@contextmanager
def started_server(*options: str) -> Generator[tuple[str, dict[str, int]], None, None]:
    """A server on a free port: its base URL, and its processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "minichat", "serve", "--no-key", "--port", str(port), *options]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not healthy(port):
            if started.poll() is not None:
                raise SystemExit(f"the server ended with exit code {started.returncode}")
            time.sleep(0.05)
        yield f"http://localhost:{port}", {"front": started.pid} | children(started.pid)
    finally:
        started.terminate()
        started.wait()


def healthy(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def children(pid: int) -> dict[str, int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {f"engine {n}" if n else "engine": int(each) for n, each in enumerate(found)}


def cpu_seconds(processes: dict[str, int]) -> dict[str, float]:
    """Processor time of each process since its start."""
    used = {}
    for name, pid in processes.items():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used[name] = (int(fields[11]) + int(fields[12])) / _TICKS
    return used


def report(
    bench: Bench, rounds: Sequence[tuple[float, dict[str, float], list[Outcome]]], ttft: float, tpot: float
) -> None:
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
    bench.note("requests", len(served) / sum(spent), "req/s")
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


def spread_of(values: Sequence[float]) -> Iterator[tuple[str, float]]:
    ranked = sorted(values)
    if ranked:
        yield "p50", statistics.median(ranked)
        yield "p99", ranked[round(0.99 * (len(ranked) - 1))]
        yield "longest", ranked[-1]
