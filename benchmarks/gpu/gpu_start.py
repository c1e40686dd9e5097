"""Where the seconds of a start go on a GPU, phase by phase, in processes of their own.

The first of `--starts` processes compiles all kernels and modules, the others find them in caches. A shape
has random weights, and no tokenizer. Then as many servers start, and /health says what each of them does.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.api.config import EngineConfig
from minichat.bench.harness import Bench
from minichat.bench.shapes import COMMON, SHAPES

_SETTINGS: dict[str, object] = {"max_context": 4096, "blocks": 256 * 2048 // 16}
_NAMES = {
    "compile": "kernels of all kinds of steps",
    "prompt": "prompts",
    "prompt_beside_a_row": "prompts",
    "capture": "graphs",
    "measure": "steps timed again",
}
_COUNT = "of the kernels: loaded, how many"
_LONGEST = 300.0  # seconds of a server's start
_LOOK_EVERY = 0.01

Seconds = dict[str, float]  # by phase, or when something beside them was done


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
        environment = _environment(cache)
        engines = [_started(config, environment) for _ in range(starts)]
        servers = [_served(config, environment, folder) for _ in range(starts)]
    columns = {"engine, compiling": engines[:1], "engine, cached": engines[1:], "server, cached": servers}
    for title, found in columns.items():
        for name in dict.fromkeys(name for each in found for name in each):
            values, unit = [each.get(name, 0.0) for each in found], "" if name == _COUNT else "s"
            bench.note(f"{model or shape}, {title}: {name}", values, unit)


def _environment(cache: str) -> dict[str, str]:
    """Store kernels and bytecode in the folder, even if the environment turns bytecode off."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"TRITON_CACHE_DIR": f"{cache}/triton", "PYTHONPYCACHEPREFIX": f"{cache}/python"}


def _started(config: dict[str, object], environment: dict[str, str]) -> Seconds:
    """The parts of a start in a process of its own."""
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.gpu_start", json.dumps(config)],
        env=environment, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    found: Seconds = json.loads(finished.stdout.splitlines()[-1])
    return found


class _Phases:
    """Seconds since the last note, by name."""

    def __init__(self) -> None:
        self.seconds: Seconds = {}
        self._last = 0.0

    def note(self, name: str) -> None:
        now = _since_the_process_began()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now


class _Kernels:
    """Counts the kernels that are loaded, and the seconds that all threads take for it."""

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0
        self._began: dict[str, float] = {}

    def watch(self) -> None:
        from triton import knobs

        knobs.runtime.kernel_load_start_hook.add(self._begin)
        knobs.runtime.kernel_load_end_hook.add(self._end)

    def _begin(self, module: Any, function: Any, name: str, group: Any, hash: str) -> None:
        self._began[hash] = time.perf_counter()

    def _end(self, module: Any, function: Any, name: str, group: Any, hash: str) -> None:
        self.count, self.seconds = self.count + 1, self.seconds + time.perf_counter() - self._began[hash]


def _phases(config: EngineConfig) -> Seconds:
    phases, kernels = _Phases(), _Kernels()
    phases.note("Python and this benchmark")

    from engine import early

    early.prepare_gpu(config.device)
    early.import_torch()
    __import__("torch")
    phases.note("torch imported")
    __import__("engine.assembly")
    phases.note("the engine imported")
    from engine.devices import pick
    from engine.start import start

    if on_gpu := pick(config.device).type == "cuda":
        kernels.watch()
    doing = ""

    def phase(name: str) -> None:
        nonlocal doing
        if doing:
            phases.note(doing)
        doing = name

    engine = start(config, phase=phase)
    phases.note(doing)
    from engine.serving.warm_up import WarmUp

    warm_up = WarmUp(engine, engine.runner.graph_sizes)
    rehearsed, rehearse = 0.0, engine.runner.start_compiling

    def timed(kinds: Any) -> Any:
        nonlocal rehearsed
        began = time.perf_counter()
        found = rehearse(kinds)
        rehearsed += time.perf_counter() - began
        return found

    engine.runner.start_compiling = timed  # type: ignore[method-assign]
    first = True
    while warm_up.share < 1:
        part = warm_up.part
        warm_up.step()
        if warm_up.part != part or (first and part == "prompt"):
            phases.note("the first step" if first and part == "prompt" else _NAMES.get(part, part))
            first = first and part != "prompt"
    found = phases.seconds | {"ready": _since_the_process_began()}
    while not warm_up.over:
        warm_up.step()
    if on_gpu:
        found |= {
            "graphs of rarer steps, when idle": _since_the_process_began() - found["ready"],
            "of the kernels: steps rehearsed, on the engine's thread": rehearsed,
            "of the kernels: loaded, seconds of all threads": kernels.seconds,
            _COUNT: kernels.count,
        }
    passed = time.monotonic() - _since_the_process_began()
    found |= {f"after how long: {name}": at - passed for name, at in sorted(early.done_at.items())}
    engine.die("measured")
    engine.close()
    return found


def _served(config: dict[str, object], environment: dict[str, str], folder: str) -> Seconds:
    """What /health says until a server is ready, and for how long."""
    place = f"{folder}/s.sock"
    words = ["serve", "--no-key", f"--uds={place}", f"--model={config['model']}"]
    words += ["--device", str(config["device"])]
    if config.get("dummy_weights"):
        words += [
            "--dummy-weights",
            *(f"--{name.replace('_', '-')}={value}" for name, value in _SETTINGS.items()),
        ]
    environment = environment | {"XDG_STATE_HOME": folder}
    began = time.monotonic()
    server = subprocess.Popen([sys.executable, "-m", "minichat", *words], env=environment)
    found, doing, last = Seconds(), "until /health is answered", began
    try:
        while doing != "ready":
            time.sleep(_LOOK_EVERY)
            now, before = time.monotonic(), doing
            if now - began > _LONGEST or server.poll() is not None:
                raise SystemExit("the server did not start; its own message is above")
            if (health := _health(place)) is not None:
                doing = health.get("doing", health["status"])
            if doing != before:
                found[before], last = found.get(before, 0.0) + now - last, now
        found["ready"] = last - began
    finally:
        server.terminate()
        server.wait()
    return found


def _health(place: str) -> dict[str, Any] | None:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.connect(place)
        connection.request("GET", "/health")
        found: dict[str, Any] = json.loads(connection.getresponse().read())
        return found
    except OSError:
        return None
    finally:
        connection.close()


def _since_the_process_began() -> float:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    up = float(Path("/proc/uptime").read_text().split()[0])
    return up - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def main(arguments: Sequence[str]) -> None:
    print(json.dumps(_phases(EngineConfig(**json.loads(arguments[0])))))


if __name__ == "__main__":
    main(sys.argv[1:])
