"""Products and norms on a CPU: the packed product beside F.linear, and the mirrored norm beside F.rms_norm.

`products`: one layer's product, by rows and data type. `bits`: the batch sizes for which a row's result
differs from the same row in a large batch: zero means that batching changes no bit. `norms`: of `--inputs`
numbers. `compiled`: the kernels in C beside torch's, for weights in 16, 8 and 4 bits. `kernels`: the memory
that products of many row counts leave behind, each count as it is, and rounded up as the engine does.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.kernels.cpu import many_rows
from engine.kernels.cpu.compiled import build
from engine.kernels.cpu.compiled.product import Int8Panels, bfloat16_panels
from engine.kernels.cpu.int8_digits import Int8Digits
from engine.kernels.cpu.packed import PackedLinear, why_not
from engine.kernels.cpu.rms_norm import CpuRmsNorm
from engine.kernels.cpu.row_buckets import pad_to_bucket
from engine.quant.int4 import CompiledInt4, PackedInt4, grouped
from engine.quant.int8 import quantized
from engine.quant.linear import Linear
from minichat.bench.harness import Bench

DTYPES = (torch.float32, torch.bfloat16)
CACHE = 96 * 2**20  # bytes of alternating weights in bfloat16, so that none stays in the processor's cache
COUNTS = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 63, 64, 100, 127)
PARTS = ("products", "bits", "norms", "compiled", "kernels")


def run(
    bench: Bench,
    *,
    only: tuple[str, ...] = ("products", "bits"),
    inputs: int = 2048,
    outputs: int = 6144,
    rows: tuple[int, ...] = (1, 4, 8, 16, 64),
    threads: int = 1,
    loops: int = 8,
    counts: int = 500,
) -> None:
    """`counts`: different row counts of `kernels`."""
    torch.set_num_threads(threads)
    copies = 4 if inputs * outputs < 2**20 else -(-CACHE // (2 * inputs * outputs))
    generator = torch.Generator().manual_seed(0)
    for dtype in DTYPES:
        weights = [torch.randn(outputs, inputs, generator=generator).to(dtype) for _ in range(copies)]
        given = [torch.randn(count, inputs, generator=generator).to(dtype) for count in rows]
        if "products" in only:
            products(bench, weights, given, loops)
        if "bits" in only:
            bits(bench, weights[0], torch.randn(128, inputs, generator=generator).to(dtype))
        if "norms" in only:
            norms(bench, given, loops)
    if "compiled" in only:  # with the weights of the last type, in bfloat16
        if problem := build.why_not(build.products(16)):
            print(f"no compiled products: {problem}", file=sys.stderr)
        else:
            compiled(bench, weights, given, loops)
    if "kernels" in only:
        for name in ("each count", "rounded up"):
            bench.note(f"kernels of {counts} row counts, {name}", left_behind(name, counts) / 1e6, "MB")


def products(bench: Bench, weights: Sequence[Tensor], given: Sequence[Tensor], loops: int) -> None:
    ways: dict[str, tuple[Callable[..., Tensor], Sequence[object]]] = {"F.linear": (F.linear, weights)}
    if why_not(weights[0]) is None:
        ways["packed"] = apply, [PackedLinear(weight, None) for weight in weights]
    if weights[0].dtype is torch.bfloat16:
        ways["converted to float32"] = many_rows.in_float32, weights
        if build.why_not(build.products(16)) is None:
            ways["compiled"] = apply, [bfloat16_panels(weight, None) for weight in weights]
    for x in given:
        label = f"{name_of(x.dtype)}, {len(x)} rows"
        calls = {f"{way}, {label}": looped(call, used, x, loops) for way, (call, used) in ways.items()}
        bench.compare(calls, unit="s/product")


def bits(bench: Bench, weight: Tensor, many: Tensor) -> None:
    ways: dict[str, Callable[[Tensor], Tensor]] = {"F.linear": partial(F.linear, weight=weight)}
    if why_not(weight) is None:
        ways["packed"] = PackedLinear(weight, None)
    for kind, product in ways.items():
        whole = product(many)
        differing = sum(not torch.equal(product(many[:rows]), whole[:rows]) for rows in COUNTS)
        label = f"{kind}, {name_of(many.dtype)}: of {len(COUNTS)} row counts, differ from 128 rows"
        bench.note(label, differing, "counts")


def norms(bench: Bench, given: Sequence[Tensor], loops: int) -> None:
    for x in given:
        weight = nn.Parameter(torch.ones(x.shape[1], dtype=x.dtype), requires_grad=False)
        mirrored = CpuRmsNorm(weight, 1e-6)

        def usual(x: Tensor, weight: Tensor) -> Tensor:
            return F.rms_norm(x, x.shape[1:], None, 1e-6) * weight

        def ours(x: Tensor, norm: CpuRmsNorm) -> Tensor:
            return norm(x)

        label = f"{name_of(x.dtype)}, {len(x)} rows"
        calls = {
            f"F.rms_norm, {label}": looped(usual, [weight], x, loops),
            f"mirrored, {label}": looped(ours, [mirrored], x, loops),
        }
        bench.compare(calls, unit="s/norm")


def compiled(bench: Bench, weights: Sequence[Tensor], given: Sequence[Tensor], loops: int) -> None:
    def in_4_bits(weight: Tensor) -> tuple[nn.Module, nn.Module]:
        kept = grouped(weight, 64), None, weight.shape[1]
        return PackedInt4(*kept), CompiledInt4(*kept)

    def in_bfloat16(weight: Tensor) -> tuple[nn.Module, nn.Module]:
        ours = bfloat16_panels(weight, None)
        if why_not(weight) is None:
            return PackedLinear(weight, None), ours
        return Linear(nn.Parameter(weight, requires_grad=False)), ours

    kinds: dict[str, Callable[[Tensor], tuple[nn.Module, nn.Module]]] = {
        "bfloat16": in_bfloat16,
        "int8": lambda weight: (Int8Digits(*quantized(weight), None), Int8Panels(*quantized(weight), None)),
        "int4": in_4_bits,
    }
    weights, given = ([each.bfloat16() for each in tensors] for tensors in (weights, given))
    for (name, both), bits in zip(kinds.items(), (16, 8, 4), strict=True):
        if build.why_not(build.products(bits)) is not None:
            continue
        theirs, ours = zip(*map(both, weights), strict=True)
        for x in given:
            calls = {
                f"torch's {name}, {len(x)} rows": looped(apply, theirs, x, loops),
                f"compiled {name}, {len(x)} rows": looped(apply, ours, x, loops),
            }
            bench.compare(calls, unit="s/product")


def left_behind(how: str, counts: int) -> float:
    """Bytes by which a process of its own grows."""
    code = f"from {__name__} import grown; grown({how!r}, {counts})"
    finished = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    return float(json.loads(finished.stdout))


def grown(how: str, counts: int) -> None:
    torch.set_num_threads(1)
    weight = torch.randn(768, 256).bfloat16()
    rows = torch.randn(counts + 1, 256).bfloat16()
    F.linear(rows[:1], weight)
    before = private_memory()
    for count in range(1, counts + 1):
        x = rows[:count]
        F.linear(pad_to_bucket(x) if how == "rounded up" else x, weight)
    print(private_memory() - before)


def private_memory() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def apply(x: Tensor, module: nn.Module) -> Tensor:
    out: Tensor = module(x)
    return out


def looped(
    product: Callable[..., Tensor], weights: Sequence[object], x: Tensor, loops: int
) -> Callable[[], float]:
    turns = cycle(weights)

    def call() -> float:
        with torch.inference_mode():
            for _ in range(loops):
                product(x, next(turns))
        return float(loops)

    return call
