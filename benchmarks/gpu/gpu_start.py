"""Where the seconds of an engine's start go on a GPU, by the parts of its warm-up, in processes of their own.

The first of `--starts` processes compiles all kernels, the others find them in Triton's cache. A shape has
random weights, and no tokenizer.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from engine.api.config import EngineConfig
from minichat.bench.harness import Bench
from minichat.bench.shapes import COMMON, SHAPES

_SETTINGS: dict[str, object] = {"max_context": 4096, "blocks": 256 * 2048 // 16}
_NAMES = {
    "compile": "kernels of all kinds of steps",
    "prompt": "prompts",
    "prompt_beside_a_row": "prompts",
    "capture": "graphs",
}


def run(bench: Bench, *, shape: str = "0.6B", starts: int = 3, model: str = "", device: str = "cuda") -> None:
    """`model`: of the catalog or a folder, in place of a shape; then `--device cpu` works, too."""
    import torch  # not above: the processes that are measured begin without it

    if device != "cpu" and not torch.cuda.is_available():
        raise SystemExit(f"gpu_start needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        (Path(folder) / "config.json").write_text(json.dumps(COMMON | SHAPES[shape]))
        config: dict[str, object] = {"model": model, "device": device}
        if not model:
            config |= {"model": folder, "dummy_weights": True, **_SETTINGS}
        found = [_started(config, cache) for _ in range(starts)]
    for kind, phases in ("compiling", found[:1]), ("cached", found[1:]):
        if phases:
            for name in phases[0]:
                bench.note(f"{model or shape}, {kind}, {name}", [each[name] for each in phases], "s")


def _started(config: dict[str, object], cache: str) -> dict[str, float]:
    """Seconds of each part of a start in a process of its own."""
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.gpu_start", json.dumps(config)],
        env=os.environ | {"TRITON_CACHE_DIR": cache}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return found


def _phases(config: EngineConfig) -> dict[str, float]:
    began = _since_the_process_began()
    phases = {"Python and this benchmark": began}

    def note(name: str) -> None:
        nonlocal began
        now = _since_the_process_began()
        phases[name] = phases.get(name, 0.0) + now - began
        began = now

    from engine.early import prepare_gpu
    from engine.start import start

    prepare_gpu(config.device)
    __import__("engine.assembly")
    note("torch and the engine imported")
    engine = start(config)
    note("weights and cache")
    from engine.serving.warm_up import WarmUp

    warm_up = WarmUp(engine, engine.runner.graph_sizes)
    while warm_up.share < 1:
        part = warm_up.part
        warm_up.step()
        if warm_up.part != part:
            note(_NAMES[part])
    phases["ready"] = _since_the_process_began()
    while not warm_up.over:
        warm_up.step()
    note("graphs of rarer steps, when idle")
    engine.die("measured")
    engine.close()
    return phases


def _since_the_process_began() -> float:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    up = float(Path("/proc/uptime").read_text().split()[0])
    return up - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def main(arguments: Sequence[str]) -> None:
    print(json.dumps(_phases(EngineConfig(**json.loads(arguments[0])))))


if __name__ == "__main__":
    main(sys.argv[1:])
