"""The server compared with the engine in this process: tokens and requests per second, time to first token.

The clients run in a separate process. So does the server's engine, as in `minichat serve`. With `--no-apart`
the server uses the engine that is also called directly, and "cpu" compares the processor time of engine and
server together, which is more reliable than the clock on a shared machine.
"""

import json
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import torch

from benchmarks.cpu.engine_cpu import random_llama
from benchmarks.server.clients import work
from engine.api.config import EngineConfig
from engine.api.params import SamplingParams
from engine.host.client import EngineClient
from engine.host.process import EngineProcess
from engine.host.thread import EngineThread
from engine.server.config import ServerConfig
from engine.server.http.binding import tcp_socket
from engine.server.http.listen import server
from engine.start import start
from minichat.bench.harness import FASTER, LONGER, Bench, Figure

SHAPE = (256, 688, 6, 8, 4)  # about 13 million parameters: a step of one row takes 2 or 3 ms
PROMPT = 32
_LEAST = 8  # requests of a round, so that p99 is not a single request


def run(
    bench: Bench,
    *,
    clients: tuple[int, ...] = (1, 8, 32, 64),
    tokens: int = 64,
    requests: int = 2,
    apart: bool = True,
) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        random_llama(Path(folder), SHAPE, "float32")
        config = EngineConfig(model=folder, threads=1, blocks=2048)
        host = EngineThread(start(config))
        behind = EngineProcess(config, Path(folder) / "log") if apart else host
        with served(behind) as port:
            speeds = {
                count: Load(bench, host, port, count, tokens, requests, cpu=not apart).run()
                for count in clients
            }
        behind.close()
    if 1 in speeds and 8 in speeds:
        bench.note("from 1 to 8 clients (mini-infer: 3.9)", speeds[8] / speeds[1], FASTER)
    if behind is not host:
        host.close()


class Load:
    """Several clients with several requests each, over HTTP and directly to the engine."""

    def __init__(
        self,
        bench: Bench,
        host: EngineClient,
        port: int,
        count: int,
        tokens: int,
        requests: int,
        *,
        cpu: bool,
    ) -> None:
        self._cpu = cpu
        self._bench, self._host, self._count = bench, host, count
        self._tokens = tokens
        self._requests = max(requests, _LEAST // count)  # of each client in a round
        self._rounds = 0
        self._draw = Random(count)
        self._prompts: list[list[list[int]]] = []
        self._times: list[float] = []
        self._pipe, there = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=work, args=(there, port, count), daemon=True)
        self._process.start()

    def run(self) -> float:
        """Measure; return the tokens per second over HTTP."""
        here, there = f"in process, {self._count}", f"HTTP, {self._count}"
        self._bench.compare(
            {here: self._in_process, there: self._over_http}, unit="tok/s", before=self._prepare
        )
        self._pipe.send(None)
        self._process.join()
        figures = {figure.name: figure for figure in self._bench.figures}
        own, http = figures[here], figures[there]
        if self._cpu:
            self._bench.note(f"cpu of HTTP / in process, {self._count}", cpu(http) / cpu(own), LONGER)
        self._bench.note(f"requests a second, {self._count}", http.median / self._tokens, "req/s")
        ranked = sorted(self._times)
        self._bench.note(f"TTFT p50, {self._count}", statistics.median(ranked), "s")
        self._bench.note(f"TTFT p99, {self._count}", ranked[round(0.99 * (len(ranked) - 1))], "s")
        return http.median

    def _prepare(self) -> None:
        """Send new prompts to the clients, so that no prefix is in the cache."""
        self._prompts = [
            [self._draw.choices(range(3, 32000), k=PROMPT) for _ in range(self._requests)]
            for _ in range(self._count)
        ]
        self._pipe.send([[self._request(prompt) for prompt in own] for own in self._prompts])

    def _over_http(self) -> float:
        self._pipe.send("go")
        times = self._pipe.recv()
        self._rounds += 1
        if self._rounds > self._bench.warmup:
            self._times += times
        return float(self._count * self._requests * self._tokens)

    def _in_process(self) -> float:
        """Each client is a thread that reads its replies to the end."""
        params = SamplingParams(temperature=0, max_tokens=self._tokens, ignore_eos=True)

        def one(prompts: list[list[int]]) -> None:
            for prompt in prompts:
                for _ in self._host.submit(prompt, params):
                    pass

        threads = [threading.Thread(target=one, args=(own,)) for own in self._prompts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return float(self._count * self._requests * self._tokens)

    def _request(self, prompt: list[int]) -> bytes:
        options: dict[str, Any] = {"prompt": prompt, "max_tokens": self._tokens, "temperature": 0}
        body = json.dumps(options | {"ignore_eos": True, "stream": True}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def cpu(figure: Figure) -> float:
    assert figure.cpu_s is not None
    return figure.cpu_s


@contextmanager
def served(host: EngineClient) -> Iterator[int]:
    bound = tcp_socket("127.0.0.1", 0)
    built = server(host, ServerConfig(name="bench"))
    thread = threading.Thread(target=built.run, args=([bound],), daemon=True)
    thread.start()
    while not built.started:
        time.sleep(0.01)
    yield int(bound.getsockname()[1])
    built.end()
    thread.join()
