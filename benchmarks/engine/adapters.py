"""LoRA adapters on a CPU: a step whose rows mix two of them with none, and the time to switch to another.

The built-in model, random adapters of every rank in `--ranks`, on the queries and values (PEFT's default for
this family) and on all linear layers. Steps are measured in processor time: two engines alternate.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

import engine as package
from engine.api.config import EngineConfig
from engine.api.events import Delta
from engine.api.params import SamplingParams
from engine.models.adapters.files import key
from engine.models.adapters.settings import CONFIG, WEIGHTS
from engine.models.adapters.targets import adapter_targets
from engine.models.config_json import read_config
from engine.serving.engine import Engine
from engine.start import start
from minichat.bench.harness import Bench, note_all, rounds

BUILT_IN = Path(package.__file__).parent / "pocket"
STEPS = 16  # in each round, between which the engines alternate
TARGETS = {
    "queries and values": ("q_proj", "v_proj"),
    "all layers": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
}


def random_adapter(folder: Path, base: Path, modules: Sequence[str], rank: int, seed: int) -> Path:
    """Write an adapter in PEFT's format for the model in `base`."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, target in adapter_targets(read_config(base)).items():
        if name.rpartition(".")[2] in modules:
            tensors[key(name, "A")] = torch.randn(rank, target.inputs, generator=generator) * 0.02
            tensors[key(name, "B")] = torch.randn(target.outputs, rank, generator=generator) * 0.02
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": [*modules]}
    (folder / CONFIG).write_text(json.dumps(config))
    save_file(tensors, folder / WEIGHTS)
    return folder


def drop(delta: Delta) -> None:
    """Ignore a delta."""


def decoding(engine: Engine, adapters: Iterable[str]) -> Callable[[], float]:
    """Start a row for each adapter; return a call that decodes some steps and returns
    the seconds of each."""
    params = SamplingParams(temperature=0, ignore_eos=True)
    for number, adapter in enumerate(adapters):
        engine.submit(range(50 + number, 82 + number), params, drop, adapter=adapter)
    while any(each.generated < 2 for each in engine.scheduler.requests.values()):
        engine.step()

    def steps() -> float:
        began = time.process_time()
        for _ in range(STEPS):
            engine.step()
        return (time.process_time() - began) / STEPS

    return steps


def run(bench: Bench, *, ranks: str = "8,16", rows: str = "3,12") -> None:
    with tempfile.TemporaryDirectory() as place:
        for rank in map(int, ranks.split(",")):
            for what, modules in TARGETS.items():
                folders = {
                    name: random_adapter(
                        Path(place) / f"{name}-{rank}-{len(modules)}", BUILT_IN, modules, rank, seed
                    )
                    for seed, name in enumerate("abc")
                }
                for count in map(int, rows.split(",")):
                    mixed(bench, folders, count, f"rank {rank}, {what}, {count} rows")
        switching(bench, folders)


def pocket() -> Engine:
    return start(EngineConfig(model="pocket", device="cpu", depth=0, seed=0))


def mixed(bench: Bench, folders: dict[str, Path], rows: int, what: str) -> None:
    """Compare steps without adapters with those of rows with one, another, and none."""
    plain, adapted = pocket(), pocket()
    for name in "ab":
        adapted.load_adapter(name, folders[name])
    calls = {
        "no adapter": decoding(plain, [""] * rows),
        "two adapters and none": decoding(adapted, ["a", "b", ""] * (rows // 3)),
    }
    note_all(bench, f"step, {what}", rounds(bench, calls))


def switching(bench: Bench, folders: dict[str, Path]) -> None:
    """From the request to load an adapter to the first token computed with it; and if it is loaded."""
    engine = pocket()
    engine.load_adapter("b", folders["b"])

    def first_token(adapter: str) -> None:
        params = SamplingParams(temperature=0, max_tokens=1)
        engine.submit(range(50, 82), params, drop, adapter=adapter)
        while engine.busy:
            engine.step()

    def load() -> None:
        engine.load_adapter("a", folders["a"])
        first_token("a")

    def forget() -> None:
        if engine.adapters.loads[1:]:
            engine.drop_adapter("a")

    bench.measure("load an adapter, then a first token", load, before=forget)
    bench.measure("first token with a loaded adapter", lambda: first_token("b"))
