"""The cost of a busy program to the engine, on a thread of the program and in a separate process.

Four replies stream on a model whose steps take about a millisecond. They are read twenty times a second, as
by a screen. The busy interpreter spends half of its time in Python, ten milliseconds at a time. Rates are
over the time in which the engine's thread ran or waited for the program. The time in which it was runnable
but had no core (Linux counts it) is excluded, because it depends on other programs. `working` is the share of
the counted time in which the thread ran: on a shared machine, where running is sometimes slower, this is the
best measure of the time lost to waiting for the interpreter.
"""

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from engine.api.config import EngineConfig
from engine.api.events import Finished
from engine.api.params import SamplingParams
from engine.host.client import EngineClient
from engine.host.process import EngineProcess
from engine.host.thread import EngineThread
from engine.start import start
from minichat.bench.harness import FASTER, Bench

STREAMS = 4
READ_EVERY = 0.05  # seconds
STRETCH = 0.01  # seconds


def run(bench: Bench, *, tokens: int = 1000, layers: int = 2, hidden: int = 64) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        (model / "config.json").write_text(json.dumps(shape(layers, hidden)))
        config = EngineConfig(model=folder, dummy_weights=True, device="cpu", threads=1, blocks=1024)
        thread, process = EngineThread(start(config)), EngineProcess(config, model / "engine.log")
        try:
            tasks = {"thread": own_thread(thread), "process": thread_of_engine(process)}
            hosts: dict[str, EngineClient] = {"thread": thread, "process": process}
            measure(bench, hosts, tasks, tokens)
        finally:
            thread.close()
            process.close()


def measure(bench: Bench, hosts: dict[str, EngineClient], tasks: dict[str, Path], tokens: int) -> None:
    """Alternate both hosts, with an idle and a busy interpreter; every other round runs backwards."""
    kinds = [(place, state) for state in ("idle", "busy") for place in hosts]
    rates: dict[str, list[float]] = {f"{place}, {state} interpreter": [] for place, state in kinds}
    shares: dict[str, list[float]] = {name: [] for name in rates}
    for number in range(bench.warmup + bench.repeats):
        for place, state in kinds if number % 2 == 0 else kinds[::-1]:
            with burning() if state == "busy" else nullcontext():
                before = schedstat(tasks[place])
                wall = stream(hosts[place], tokens)
                ran, delayed, _ = (
                    now - then for now, then in zip(schedstat(tasks[place]), before, strict=True)
                )
            seconds = wall - delayed / 1e9
            if number >= bench.warmup:
                rates[f"{place}, {state} interpreter"].append(STREAMS * tokens / seconds)
                shares[f"{place}, {state} interpreter"].append(ran / 1e9 / seconds)
    for name in rates:
        bench.note(name, rates[name], "tok/s")
        bench.note(f"{name}: working", shares[name], "")
    first, *others = rates
    for name in others:
        for found, what, unit in ((rates, "", FASTER), (shares, ": working", "x")):
            ratios = [one / base for one, base in zip(found[name], found[first], strict=True)]
            bench.note(f"{name} / {first}{what}", ratios, unit)


def shape(layers: int, hidden: int) -> dict[str, object]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 1024,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "dtype": "float32",
    }


def stream(host: EngineClient, tokens: int) -> float:
    """Seconds until the engine had the last token; both processes use the same clock."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    ends: list[float] = []
    leave = host.subscribe(lambda event: ends.append(event.at) if isinstance(event, Finished) else None)
    began = time.monotonic()
    running = [host.submit([n + 1, 2, 3], params) for n in range(STREAMS)]
    while running:
        time.sleep(READ_EVERY)
        for each in list(running):
            deltas = each.take()
            if deltas and deltas[-1].finish:
                running.remove(each)
    host.snapshot()  # all events have arrived before it returns
    leave()
    return max(ends) - began


def own_thread(host: EngineThread) -> Path:
    return Path(f"/proc/self/task/{host._thread.native_id}")


def thread_of_engine(host: EngineProcess) -> Path:
    """The thread that uses the most processor time while a reply streams."""
    before = {task: schedstat(task)[0] for task in Path(f"/proc/{host.pid}/task").iterdir()}
    stream(host, 100)
    return max(before, key=lambda task: schedstat(task)[0] - before[task])


def schedstat(task: Path) -> list[int]:
    """Nanoseconds on a core, nanoseconds of waiting for a core, and time slices."""
    return [int(word) for word in (task / "schedstat").read_text().split()]


@contextmanager
def burning() -> Iterator[None]:
    """Run a thread that computes half of the time, like a program that renders often."""
    over = threading.Event()

    def burn() -> None:
        while not over.is_set():
            until = time.perf_counter() + STRETCH
            while time.perf_counter() < until:
                sum(range(200))
            time.sleep(STRETCH)

    thread = threading.Thread(target=burn)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
