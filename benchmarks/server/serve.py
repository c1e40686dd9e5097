"""Load on an OpenAI endpoint: closed loop, Poisson arrivals or a trace; throughput, latencies, goodput.

`--url` is any server with /v1/completions (http only). Without it, `minichat serve --dry-run` is started: the
engine makes up the tokens at `--rate` a second for each stream, so the figures are those of the HTTP front.
`--arrivals`: closed (`--clients` at a time), poisson (`--per-second`), or the file of a trace in the form of
Azure's or Mooncake's, `.csv` or `.jsonl`, also as `.xz`. Lengths come from the trace, else from N of `gpu`.
Goodput is the share of requests whose first token and mean time between tokens stay within the limits.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager

from minichat.bench.harness import Bench
from minichat.bench.load.http import lengths, started_server
from minichat.bench.load.measure import ServerLoad, measure

_IN_FLIGHT = "100000"  # of the server started here, so that it refuses none
_BLOCKS = "40000"  # of the dry run, so that no request waits for them
DRY_RUN = ("--dry-run", "--blocks", _BLOCKS, "--max-in-flight", _IN_FLIGHT, "--max-per-key", _IN_FLIGHT)


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
    most = clients if arrivals == "closed" else sys.maxsize
    with endpoint(url, rate) as (base, processes):
        measure(bench, ServerLoad(asked, most, ttft, tpot, model, key, prompts), base, processes)


@contextmanager
def endpoint(url: str, rate: float) -> Generator[tuple[str, dict[str, int]], None, None]:
    """The base URL, and the processes of the server if it was started here."""
    if url:
        yield url.removesuffix("/v1"), {}
    else:
        with started_server(*DRY_RUN, "--rate", f"{rate:g}") as started:
            yield started
