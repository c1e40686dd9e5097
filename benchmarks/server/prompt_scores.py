"""Scoring a prompt over HTTP, which returns its log-probabilities, compared with only reading it.

`--url` is any server with `echo` and `max_tokens: 0` on /v1/completions, as lm-eval uses them. Without it, a
server of `--model` is started. "read / score" is the speed of reading relative to that of scoring: at 2,
scoring takes twice as long.
"""

import itertools
from collections.abc import Callable
from typing import Any

import httpx

from minichat.bench.harness import Bench
from minichat.bench.load.http import started_server


def run(
    bench: Bench, *, url: str = "", model: str = "pocket", tokens: int = 1024, blocks: int = 1024
) -> None:
    """`blocks`: of the cache of the server that is started."""
    with httpx.Client(timeout=600) as http:
        if url:
            bench.compare(scoring(http, url.removesuffix("/v1"), tokens), unit="s")
            return
        with started_server("--model", model, "--blocks", str(blocks)) as (base, _):
            bench.compare(scoring(http, base, tokens), unit="s")


def scoring(http: httpx.Client, base: str, tokens: int) -> dict[str, Callable[[], None]]:
    """Two calls that send a prompt of `tokens` ids: to be scored, and to be read. No prompt is in a cache."""
    numbers = itertools.count(100)

    def ask(**fields: Any) -> None:
        prompt = [next(numbers), *(300 + n % 700 for n in range(tokens - 1))]
        body = {"prompt": prompt, "max_tokens": 0, **fields}
        http.post(f"{base}/v1/completions", json=body).raise_for_status()

    return {"score": lambda: ask(echo=True, logprobs=1), "read": ask}
