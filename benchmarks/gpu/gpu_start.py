"""Where the seconds of a start go on a GPU, phase by phase, in processes of their own.

The first of `--starts` processes compiles all kernels and modules, the others find them in caches. A shape
has random weights, and no tokenizer. Then as many servers start, whose model has a tokenizer with a name for
each token, and /health says what each of them does.

Of the last engine and the last server, the spans of every thread are printed, and which share of each its
thread computed; the rest are waits, or work of libraries on other threads. `--profile` starts one more
engine, and prints in which functions each phase computes or waits.
"""

import cProfile
import gc
import http.client
import json
import os
import pstats
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engine import timeline
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
POCKET = Path(__file__).parents[2] / "engine" / "pocket"
_LONGEST = 300.0  # seconds of a server's start
_LOOK_EVERY = 0.01
_WHILE_WARMING = 0.05  # then the engine answers, and each answer takes it 2 ms
_SHORT = 0.01  # seconds; shorter spans are not printed
_PROFILED = 0.1  # seconds of a phase
_FUNCTIONS = 12  # of a phase

Seconds = dict[str, float]  # by phase


class Started(NamedTuple):
    seconds: Seconds
    spans: list[timeline.Span]
    began: float  # on the monotonic clock


def run(
    bench: Bench,
    *,
    shape: str = "0.6B",
    starts: int = 3,
    model: str = "",
    device: str = "cuda",
    tp: int = 1,
    profile: bool = False,
    cache: str = "",
) -> None:
    """`model`: of the catalog or a folder, in place of a shape; then `--device cpu` works, too.

    `cache`: an empty folder that keeps the caches, for what is measured after.
    """
    import torch  # not above: the processes that are measured begin without it

    if device != "cpu" and not torch.cuda.is_available():
        raise SystemExit(f"gpu_start needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as dropped:
        (Path(folder) / "config.json").write_text(json.dumps(COMMON | SHAPES[shape]))
        config: dict[str, object] = {"model": model, "device": device, "tp": tp}
        if not model:
            config |= {"model": folder, "dummy_weights": True, **_SETTINGS}
        environment = _environment(cache or dropped)
        engines = [_started(config, environment) for _ in range(starts)]
        if not model:
            _write_tokenizer(Path(folder), SHAPES[shape]["vocab_size"])
        servers = [_served(config, environment, folder) for _ in range(starts)]
        if profile:
            _started(config, environment, "profile")
    columns = {"engine, compiling": engines[:1], "engine, cached": engines[1:], "server, cached": servers}
    for title, found in columns.items():
        for name in dict.fromkeys(name for each in found for name in each.seconds):
            values, unit = [each.seconds.get(name, 0.0) for each in found], "" if name == _COUNT else "s"
            bench.note(f"{model or shape}, {title}: {name}", values, unit)
    for title, last in {"engine alone": engines[-1], "engine of a server": servers[-1]}.items():
        print(table(title, last))


def _write_tokenizer(folder: Path, size: int) -> None:
    """The built-in tokenizer with a word for each other id of the model: loads as slowly as others."""
    shutil.copy(POCKET / "tokenizer_config.json", folder)
    found = json.loads((POCKET / "tokenizer.json").read_text())
    words = found["model"]["vocab"]
    used = {*words.values(), *(each["id"] for each in found["added_tokens"])}
    words |= {f"\u0120w{id}": id for id in range(size) if id not in used}
    (folder / "tokenizer.json").write_text(json.dumps(found))


def _environment(cache: str) -> dict[str, str]:
    """Store kernels and bytecode in the folder, even if the environment turns bytecode off."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"TRITON_CACHE_DIR": f"{cache}/triton", "PYTHONPYCACHEPREFIX": f"{cache}/python"}


def table(title: str, started: Started) -> str:
    """The spans of all threads, in the order in which they began."""
    lines = [f"\n{title}, seconds since its start\n   from      to    took share  thread"]
    for each in started.spans:
        if (took := each.ended - each.began) >= _SHORT:
            since = f"{each.began - started.began:7.2f} {each.ended - started.began:7.2f} {took:7.2f}"
            lines.append(f"{since} {each.busy / took:5.0%}  {each.thread:14} {each.what}")
    return "\n".join(lines)


def _started(config: dict[str, object], environment: dict[str, str], *words: str) -> Started:
    """The parts of a start in a process of its own."""
    began = time.monotonic()
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.gpu_start", json.dumps(config), *words],
        env=environment, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    seconds, spans = finished.stdout.splitlines()[-2:]
    return Started(json.loads(seconds), timeline.from_text(spans), began)


class _Phases:
    """Seconds since the last note, by name."""

    def __init__(self, *, profile: bool) -> None:
        self.seconds: Seconds = {}
        self._last = 0.0
        self._profile = cProfile.Profile() if profile else None

    def note(self, name: str) -> None:
        took = _since_the_process_began() - self._last
        self.seconds[name] = self.seconds.get(name, 0.0) + took
        if self._profile is not None:
            self._profile.disable()
            if self._last and took >= _PROFILED:
                print(f"\n{name}: {took:.2f} s", file=sys.stderr)
                pstats.Stats(self._profile, stream=sys.stderr).sort_stats("tottime").print_stats(_FUNCTIONS)
            self._profile = cProfile.Profile()
            self._profile.enable()
        self._last = _since_the_process_began() if self._profile else self._last + took


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


def _phases(config: EngineConfig, *, profile: bool) -> Seconds:
    gc.disable()  # like the process of a server's engine
    phases, kernels = _Phases(profile=profile), _Kernels()
    phases.note("Python and this benchmark")

    from engine.generated import kept_code
    from engine.host.launching import let_threads_sleep

    kept_code.begin()
    let_threads_sleep()
    from engine import early
    from engine.distributed.crews.started import RankCount, start_early
    from engine.kv.pinned import bytes_ahead

    start_early(RankCount.of(config))
    early.prepare_gpu(config.device, bytes_ahead(config))
    early.import_torch()
    __import__("torch")
    phases.note("torch imported")
    with timeline.timed("the engine's modules"):
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

    engine = start(config, imported=gc.freeze, phase=phase)
    kept_code.end()
    gc.collect()
    gc.freeze()
    gc.enable()
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
    engine.die("measured")
    engine.close()
    return found


def _served(config: dict[str, object], environment: dict[str, str], folder: str) -> Started:
    """What /health says until a server is ready, and for how long."""
    place = f"{folder}/s.sock"
    words = ["serve", "--no-key", f"--uds={place}", f"--model={config['model']}"]
    words += ["--device", str(config["device"]), "--tp", str(config["tp"])]
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
            time.sleep(_WHILE_WARMING if doing == "warming" else _LOOK_EVERY)
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
    log = (Path(folder) / "minichat" / "engine.log").read_text()
    spans = timeline.from_text(log.rpartition(timeline.STARTED)[2].splitlines()[0])
    return Started(found, spans, began)


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
    print(json.dumps(_phases(EngineConfig(**json.loads(arguments[0])), profile="profile" in arguments)))
    print(timeline.as_text())


if __name__ == "__main__":
    main(sys.argv[1:])
