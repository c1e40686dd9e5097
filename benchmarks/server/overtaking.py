"""How long a request waits over HTTP behind a full batch, by its priority.

`--url` is a server with `--policy priority` whose batch holds `--rows` replies. Without it, a dry run is
started that makes up `--rate` tokens a second for each reply.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx

from minichat.bench.harness import Bench
from minichat.bench.load.http import started_server

_MOST_CHOICES = 64  # of one request
_CASES = {"the same priority": 0, "priority -1": -1}


def run(bench: Bench, *, url: str = "", rows: int = 256, tokens: int = 400, rate: float = 50.0) -> None:
    """`tokens`: of each reply in the batch."""
    if url:
        _measure(bench, url.removesuffix("/v1"), rows, tokens)
        return
    with started_server("--dry-run", "--policy", "priority", "--rate", f"{rate:g}") as (base, _):
        _measure(bench, base, rows, tokens)


def _measure(bench: Bench, base: str, rows: int, tokens: int) -> None:
    with httpx.Client(base_url=base, timeout=600) as http:
        waits: dict[str, list[float]] = {name: [] for name in _CASES}
        for turn in range(bench.warmup + bench.repeats):
            for number, (name, priority) in enumerate(_CASES.items()):
                with _full_batch(http, rows, tokens):
                    began = time.perf_counter()
                    _complete(http, [300 + turn, 400 + number, 5, 6], max_tokens=1, priority=priority)
                    waits[name].append(time.perf_counter() - began)
    for name, seconds in waits.items():
        bench.note(f"first token behind {rows} replies, {name}", seconds[bench.warmup :], "s")


@contextmanager
def _full_batch(http: httpx.Client, rows: int, tokens: int) -> Iterator[None]:
    """Let `rows` replies run, and abort them at the end."""
    with ExitStack() as streams:
        for first in range(0, rows, _MOST_CHOICES):
            body = {
                **_body([300 + first, 5, 6, 7], max_tokens=tokens),
                "n": min(_MOST_CHOICES, rows - first),
                "temperature": 1,
                "stream": True,
            }
            streams.enter_context(http.stream("POST", "/v1/completions", json=body))
        _wait(http, running=rows)
        yield
    _wait(http, running=0)


def _wait(http: httpx.Client, running: int) -> None:
    for _ in range(3000):
        if http.get("/engine").json()["running"] == running:
            return
        time.sleep(0.01)
    raise SystemExit(f"the server does not run {running} replies at once")


def _complete(http: httpx.Client, prompt: list[int], **fields: Any) -> None:
    http.post("/v1/completions", json=_body(prompt, **fields)).raise_for_status()


def _body(prompt: list[int], **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "temperature": 0, "ignore_eos": True, **fields}
