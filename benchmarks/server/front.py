"""The front's processor time a streamed request, of this tree and of another one, alternating.

The `minichat serve --dry-run` of this tree, and of the one in the folder `--other`, gets `--requests` at
once, which ask for `--tokens` each. The event loop's thread has a part of the time; the rest is that of
threads that encode prompts and talk to the engine's process.
"""

import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.alternating import HERE
from benchmarks.server.serve import DRY_RUN
from minichat.bench.harness import Bench, note_all
from minichat.bench.load.client import Outcome, TimedRequest, work
from minichat.bench.load.http import lengths, message, started_server

_QUIET = 0.3  # seconds before and after a round, in which what remains of the others is done


def run(
    bench: Bench,
    *,
    other: str = "",
    requests: int = 256,
    prompts: str = "ids",
    tokens: int = 1,
    rate: float = 110.0,
) -> None:
    roots = {"this tree": HERE} | ({"the other": Path(other).resolve()} if other else {})
    names = ("processor time a request", "that of the event loop", "time to first token, p50")
    found: dict[str, dict[str, list[float]]] = {name: {tree: [] for tree in roots} for name in names}
    with ExitStack() as stack:
        servers = {}
        for tree, root in roots.items():
            started = started_server(*DRY_RUN, "--rate", f"{rate:g}", root=root)
            base, processes = stack.enter_context(started)
            servers[tree] = _Server(base, processes["front"], stack)
        for turn in range(bench.warmup + bench.repeats):
            order = list(servers) if turn % 2 else list(servers)[::-1]
            for tree in order:
                figures = servers[tree].round(turn, requests, prompts, tokens)
                if turn >= bench.warmup:
                    for name, value in zip(names, figures, strict=True):
                        found[name][tree].append(value)
    for name, values in found.items():
        note_all(bench, name, values)


class _Server:
    def __init__(self, base: str, pid: int, stack: ExitStack) -> None:
        self._pid, self._netloc = pid, urlsplit(base).netloc
        self._pipe, there = multiprocessing.Pipe()
        address = ("127.0.0.1", urlsplit(base).port or 80)
        context = multiprocessing.get_context("spawn")
        context.Process(target=work, args=(there, address), daemon=True).start()
        there.close()
        stack.callback(self._pipe.send, None)

    def round(self, turn: int, requests: int, prompts: str, tokens: int) -> tuple[float, float, float]:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self._netloc}\r\n"
        sizes = [size for _, size, _ in lengths("closed", requests, 1.0, 1024)]
        orders = [
            TimedRequest(0.0, message(head, "", prompts, size, tokens, seed=(turn, number)))
            for number, size in enumerate(sizes)
        ]
        time.sleep(_QUIET)
        before = _used(self._pid)
        firsts = _firsts(self._pipe, orders)
        time.sleep(_QUIET)
        whole, loop = (now - then for now, then in zip(_used(self._pid), before, strict=True))
        return whole / requests, loop / requests, statistics.median(firsts)


def _firsts(pipe: Connection, orders: Sequence[TimedRequest]) -> list[float]:
    pipe.send((orders, len(orders)))
    outcomes: list[Outcome] = pipe.recv()
    if failed := [one.error for one in outcomes if one.error]:
        sys.exit(f"a request failed: {failed[0]}")
    return [one.first for one in outcomes if one.first is not None]


def _used(pid: int) -> tuple[float, float]:
    """Seconds on a processor: of all threads that live, and of the first one, which runs the event loop."""
    tasks = Path(f"/proc/{pid}/task")
    used = {each.name: int((each / "schedstat").read_text().split()[0]) / 1e9 for each in tasks.iterdir()}
    return sum(used.values()), used[str(pid)]
