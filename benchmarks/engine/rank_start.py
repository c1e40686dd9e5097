"""The start of ranks, up to the end of their first reply of two tokens, in processes of their own.

Each shape starts with an empty Triton cache, and again with what that start has left there; both with torch
imported before, as in an engine that is replaced, and as a process that has imported nothing. The spans of
every thread of every rank are printed, and which share of each its thread computed.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.gpu_start import Started, table
from engine import timeline
from engine.api.config import EngineConfig
from engine.api.params import SamplingParams
from engine.start import start
from minichat.bench.harness import Bench
from minichat.bench.shapes import COMMON, SHAPES

_PROMPT, _TOKENS = [1, 2, 3], 2
_WITHIN = 120.0  # seconds of a start
_NOTED = 2.0  # seconds until a process has noted its kernels for the next one
STATES = ("torch imported", "nothing imported")


def run(
    bench: Bench,
    *,
    shape: str = "8B",
    ranks: tuple[int, ...] = (2, 1),
    quantization: str = "none",
    blocks: int = 256 * 2048 // 16,
    model: str = "",
    device: str = "auto",
    only: tuple[str, ...] = STATES,
) -> None:
    """`model`: of the catalog or a folder, in place of a shape; then `--device cpu` works, too."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(COMMON | SHAPES[shape]))
        config = {
            "model": model or folder, "dummy_weights": not model, "max_context": 2048, "prefix_cache": False,
            "blocks": blocks, "host_blocks": 0, "seed": 0, "quantization": quantization, "device": device,
        }  # fmt: skip
        for tp in ranks:
            for state in only:
                measure(bench, f"{model or shape}, {tp} ranks, {state}", config | {"tp": tp}, state)


def measure(bench: Bench, label: str, config: dict[str, Any], state: str) -> None:
    with tempfile.TemporaryDirectory() as cache:
        for kernels in ("compiling", "kernels cached"):
            found = started(config, state, os.environ | {"TRITON_CACHE_DIR": cache})
            for name, seconds in found.seconds.items():
                bench.note(f"{label}, {kernels}: {name}", seconds, "s")
            figures = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in found.seconds.items())
            print(table(f"{label}, {kernels}: {figures}; spans", found), flush=True)


def started(config: dict[str, Any], state: str, environment: dict[str, str]) -> Started:
    began = time.monotonic()
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.engine.rank_start", json.dumps(config), state],
        env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=_WITHIN,
    )  # fmt: skip
    seconds, started_at, spans = finished.stdout.splitlines()[-3:]
    found: dict[str, float] = json.loads(seconds)
    if state != STATES[0]:
        found["process to first reply"] = float(started_at) - began + found["start to first reply"]
    return Started(found, timeline.from_text(spans), float(started_at))


def main(arguments: Sequence[str]) -> None:
    config, state = EngineConfig(**json.loads(arguments[0])), arguments[1]
    if state == STATES[0]:
        __import__("engine.assembly")
    began = time.monotonic()
    engine = start(config)
    seconds = {"start": time.monotonic() - began}
    params = SamplingParams(max_tokens=_TOKENS, temperature=0.6, ignore_eos=True)
    times = list[float]()
    engine.submit(_PROMPT, params, lambda delta: times.append(time.monotonic() - began))
    while engine.busy:
        engine.step()
    seconds |= {"start to first token": times[0], "start to first reply": times[-1]}
    print(json.dumps(seconds), began, timeline.as_text(), sep="\n", flush=True)
    time.sleep(_NOTED)
    engine.die("measured")
    engine.close()


if __name__ == "__main__":
    main(sys.argv[1:])
