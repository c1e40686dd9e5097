"""Loading a model: seconds, and the most memory that it takes, beside the file and what is held at the end.

Each load is a process of its own, which has loaded the built-in model before, so that what is imported does
not count. `--model`: a folder, a GGUF file or a name; by default a folder with random weights of `--shape` is
written. The file is read once before, so it is in the page cache. The peak is that of resident memory (of a
GPU: what torch has allocated), minus what there was before; pages of the file that are mapped count, too.
"""

import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from engine.models.checkpoint import shards
from engine.models.find import find_model
from engine.models.registry import load_model
from minichat.bench.harness import Bench
from minichat.bench.shapes import COMMON, SHAPES
from minichat.bench.written import write

_PIECE = 2**24  # bytes read at a time


def run(
    bench: Bench,
    *,
    model: str = "",
    shape: str = "0.6B",
    schemes: tuple[str, ...] = ("none", "int8", "int4"),
    device: str = "cpu",
) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(f"--device cuda needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    with _place(model, shape) as name:
        files = shards(find_model(name).folder)
        size = bench.note("the file", sum(file.stat().st_size for file in files) / 1e6, "MB").median
        bench.note("reading the file", [_seconds_to_read(files) for _ in range(2)][1:], "s")
        for scheme in schemes:
            found = [_in_a_process(name, scheme, device) for _ in range(bench.repeats)]
            bench.note(f"{scheme}, loading", [each["seconds"] for each in found], "s")
            bench.note(f"{scheme}, held at the end", [each["held"] for each in found], "MB")
            bench.note(f"{scheme}, peak", [each["peak"] for each in found], "MB")
            bench.note(f"{scheme}, peak / larger of file and held",
                       [each["peak"] / max(size, each["held"]) for each in found], "x")  # fmt: skip


@contextmanager
def _place(model: str, shape: str) -> Iterator[str]:
    if model:
        yield model
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), COMMON | SHAPES[shape])
        yield folder


def _seconds_to_read(files: list[Path]) -> float:
    began = time.perf_counter()
    for file in files:
        with file.open("rb", buffering=0) as opened:
            piece = bytearray(_PIECE)
            while opened.readinto(piece):
                pass
    return time.perf_counter() - began


def _in_a_process(model: str, scheme: str, device: str) -> dict[str, float]:
    program = f"from benchmarks.engine.loading import load; load({model!r}, {scheme!r}, {device!r})"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def load(model: str, scheme: str, device: str) -> None:
    """Load a model, and print what it took, in seconds and megabytes."""
    load_model(find_model("pocket"), quantization=scheme, device=device)
    gc.collect()
    before = _resident("VmRSS")
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    began = time.perf_counter()
    made = load_model(find_model(model), quantization=scheme, device=device)
    seconds = time.perf_counter() - began
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else _resident("VmHWM")
    print(json.dumps({"seconds": seconds, "held": _held(made) / 1e6, "peak": (peak - before) / 1e6}))


def _held(model: Any) -> int:
    """Bytes of the tensors of a model; those that share memory count once."""
    tensors = [*model.parameters(), *model.buffers()]
    packed = sum({id(each): each.nbytes for each in tensors if each.is_mkldnn}.values())
    storages = (each.untyped_storage() for each in tensors if not each.is_mkldnn)
    return packed + sum({each.data_ptr(): each.nbytes() for each in storages}.values())


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("loading needs Linux, whose /proc has the memory of a process")
