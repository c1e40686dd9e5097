"""A server under load: requests as HTTP messages, their arrivals, and a server process to send them to."""

import csv
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from http.client import HTTPConnection
from lzma import LZMAError
from pathlib import Path
from typing import Any

from engine.api.errors import BadInput
from minichat.bench.load.traces import opened

# Each of them is one token of the built-in model and of most others, so texts are as long as prompts of ids.
WORDS = "the sea old stone of river light under hill water in quiet window a first rain to".split()
_VOCAB = 3000  # ids of prompts stay below it, so that usual models take them
_TICKS = os.sysconf("SC_CLK_TCK")
_START, _END = 1200.0, 60.0  # most seconds until a server is ready, with a large model, and until it ended

Length = tuple[float, int, int]  # when it arrives, tokens of the prompt, tokens of the reply


def lengths(arrivals: str, requests: int, per_second: float, longest: int) -> list[Length]:
    """Lengths of N of `gpu`, all at once (`closed`) or at random times (`poisson`), or those of a trace."""
    draw = random.Random(0)
    if arrivals in ("closed", "poisson"):
        at, found = 0.0, []
        for _ in range(requests):
            found.append((at, draw.randint(100, 1024), draw.randint(100, longest)))
            at += draw.expovariate(per_second) if arrivals == "poisson" else 0.0
        return found
    return traced(Path(arrivals))[:requests]


def traced(file: Path) -> list[Length]:
    """The requests of a trace, from its beginning. Raises BadInput if it is something else."""
    read = _azure if ".csv" in file.suffixes else _mooncake
    try:
        with opened(file) as lines:
            rows = [read(record) for record in (csv.DictReader(lines) if read is _azure else lines)]
    except (OSError, LZMAError, ValueError, KeyError, TypeError):
        raise BadInput(f"{file} is not a trace in Azure's or Mooncake's form") from None
    return [(at - rows[0][0], size, count) for at, size, count in rows]


def _azure(row: Any) -> Length:
    at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
    return at, int(row["ContextTokens"]), int(row["GeneratedTokens"])


def _mooncake(line: Any) -> Length:
    record = json.loads(line)
    return record["timestamp"] / 1e3, int(record["input_length"]), int(record["output_length"])


def message(
    head: str, model: str, prompts: str, size: int, count: int, seed: object, vocab: int = _VOCAB
) -> bytes:
    draw = random.Random(repr(seed))
    asked: dict[str, Any] = {
        "prompt": " ".join(draw.choices(WORDS, k=size))
        if prompts == "text"
        else [draw.randrange(3, vocab) for _ in range(size)],
        "max_tokens": count,
        "temperature": 0.6,  # greedy, random weights may repeat part of a character, which is no text
        "seed": draw.randrange(2**31),
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body = json.dumps(asked | ({"model": model} if model else {})).encode()
    fields = f"Content-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + fields).encode() + body


@contextmanager
def started_server(
    *options: str, root: Path | None = None
) -> Generator[tuple[str, dict[str, int]], None, None]:
    """A server on a free port: its base URL, and its processes. `root`: another tree of this project."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tied("serve", "--no-key", "--port", str(port), *options, root=root) as started:
        latest = time.monotonic() + _START
        while not healthy(port):
            if started.poll() is not None:
                raise SystemExit(f"the server ended with exit code {started.returncode}")
            if time.monotonic() > latest:
                raise SystemExit(f"the server was not ready after {_START:.0f} s")
            time.sleep(0.05)
        yield f"http://localhost:{port}", {"front": started.pid} | children(started.pid)


@contextmanager
def tied(*words: str, root: Path | None = None) -> Generator[subprocess.Popen[bytes], None, None]:
    """A process of minichat, which also ends if this one is killed."""
    command = [sys.executable, "-m", "minichat.bench.load.tied", *words]
    started = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(_END)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
        assert started.stdin is not None
        started.stdin.close()


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


def cpu_seconds(processes: Mapping[str, int]) -> dict[str, float]:
    """Processor time of each process since its start."""
    used = {}
    for name, pid in processes.items():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used[name] = (int(fields[11]) + int(fields[12])) / _TICKS
    return used


def spread_of(values: Sequence[float]) -> Iterator[tuple[str, float]]:
    ranked = sorted(values)
    if ranked:
        yield "p50", statistics.median(ranked)
        yield "p99", ranked[round(0.99 * (len(ranked) - 1))]
        yield "longest", ranked[-1]
