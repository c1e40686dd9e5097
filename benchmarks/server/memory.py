"""Memory of a server's processes while it answers many mixed requests.

Starts `minichat serve` with a model on the CPU. The requests are chats and completions, streamed or not, with
sampling, several replies, log-probabilities, beams and JSON under a schema; one in ten is aborted by its
client after the first piece, and one in ten is invalid. Prompts repeat, so that the prefix cache is used.

The cache is small, so that all of its pages are soon in use: they count as resident only then.
"""

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx

from benchmarks.harness import Bench
from benchmarks.server.serve import started_server

_SAMPLES = 10  # of the memory, evenly spread over the requests
_WORDS = "the sea old stone of river light under hill paper in quiet window a first rain to".split()
_SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}}
_VARIANTS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.9, "top_p": 0.9},
    {"n": 3, "temperature": 0.7},
    {"logprobs": True, "top_logprobs": 5},
    {"frequency_penalty": 0.5, "seed": 3},
    {"stop": ["a", "."]},
    {"num_beams": 3, "temperature": 0},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "one", "schema": _SCHEMA}}},
)
_INVALID: tuple[dict[str, Any], ...] = (
    {"temperature": -1},
    {"max_tokens": 10**9},
    {"messages": "none"},
    {"stop": [""]},
    {"top_p": "much"},
)


def run(
    bench: Bench, *, model: str = "pocket", requests: int = 10_000, clients: int = 32, blocks: int = 512
) -> None:
    """`blocks`: of the cache."""
    options = ("--model", model, "--device", "cpu", "--blocks", str(blocks))
    with started_server(*options) as (base, processes):
        bench.note("cache for keys and values", cache_bytes(base) / 2**20, "MB")
        report(bench, 0, processes)
        for sample in range(_SAMPLES):
            asyncio.run(send(base, model, requests // _SAMPLES, clients, random.Random(sample)))
            report(bench, (sample + 1) * requests // _SAMPLES, processes)


def report(bench: Bench, requests: int, processes: dict[str, int]) -> None:
    for name, pid in processes.items():
        bench.note(f"{name}, after {requests:,} requests", resident_bytes(pid) / 2**20, "MB")


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"process {pid} has ended")


def cache_bytes(base: str) -> float:
    """The size of the KV cache. Its pages count as resident once they have been used."""
    memory: dict[str, int] = httpx.get(f"{base}/engine/snapshot").json()["memory"]
    return memory["cache"]


async def send(base: str, model: str, requests: int, clients: int, draw: random.Random) -> None:
    """Send the requests, `clients` at a time."""
    left = iter(range(requests))
    async with httpx.AsyncClient(base_url=base, timeout=600) as client:

        async def one_after_another() -> None:
            for _ in left:
                await ask(client, model, draw)

        await asyncio.gather(*(one_after_another() for _ in range(clients)))


async def ask(client: httpx.AsyncClient, model: str, draw: random.Random) -> None:
    text = " ".join(random.Random(draw.randrange(200)).choices(_WORDS, k=draw.choice((5, 40, 300))))
    if draw.random() < 0.5:
        text += " " + " ".join(draw.choices(_WORDS, k=8))
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": text}]}
    body |= {"max_tokens": draw.randrange(1, 40)} | draw.choice(_VARIANTS)
    kind = draw.random()
    if kind < 0.1:
        expect(await client.post("/v1/chat/completions", json=body | draw.choice(_INVALID)), 400)
    elif kind < 0.5:
        async with client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as answer:
            async for _ in answer.aiter_bytes():
                if kind < 0.2:
                    return  # the client closes the connection
            expect(answer, 200)
    else:
        expect(await client.post("/v1/chat/completions", json=body), 200)


def expect(answer: httpx.Response, status: int) -> None:
    if answer.status_code != status:
        text = answer.text if answer.is_closed else ""
        raise RuntimeError(f"expected status {status}, got {answer.status_code}: {text[:300]}")
