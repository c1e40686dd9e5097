"""The products of one layer on a GPU in a CUDA graph, and the head's, by rows and by scheme.

Each product as the engine launches it, without the activation and without the sum of split inputs, which are
kernels around it. It runs with several weights in turn, which are together larger than the GPU's cache. If a
scheme rounds the rows first, the product is also measured with rows that are rounded already. Few rows are
compared with the speed at which a device copy reads and writes, many rows with torch's scaled product of 8192
by 8192 by 8192, whose scales are per row. The result is checked against float32.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu.gpu_attention import copy_speeds
from benchmarks.gpu.gpu_experts import compile_all, times
from engine.attention.graph_work import gpu as limits
from engine.kernels.triton.gemm.quantize_fp8 import KIND, quantize_fp8
from engine.kernels.triton.norm.norm import Normed
from engine.models.layers.gpu import GpuKernels
from engine.models.layers.part import PDL_ROWS
from engine.quant.fp8_linear import quantized
from engine.quant.gpu_products import Fp8Product
from engine.quant.product import Product
from engine.quant.registry import named
from minichat.bench.harness import Bench
from minichat.bench.shapes import COMMON, SHAPES

PARTS = ("qkv", "out", "gate_up", "down", "head")
HEAD = ("none", "int8")  # the head's schemes: fp8 and int4 store it as int8
FRESH_BYTES, MOST = 5e8, 32  # of all weights of a product: several times the GPU's cache; their number
MANY = 256  # from this many rows on, arithmetic is the limit
CUBE = 8192
WRONG = 2e-2  # relative error from which on a result is wrong

Launch = Callable[[Product], Tensor]


def run(
    bench: Bench,
    *,
    shape: str = "8B",
    schemes: tuple[str, ...] = ("none", "fp8", "int8", "int4"),
    rows: tuple[int, ...] = (1, 8, 32, 64, 128, 256, 512, 2048),
    only: tuple[str, ...] = PARTS,
) -> None:
    if not torch.cuda.is_available():
        raise SystemExit(f"gpu_products needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    if shape not in SHAPES:
        raise SystemExit(f"no shape {shape!r}; choose from {', '.join(SHAPES)}")
    device = torch.device("cuda", 0)
    kernels = GpuKernels(limits(device))
    with torch.inference_mode():
        copied = bench.note("a device copy, read and written", copy_speeds(bench), "TB/s").median
        cube = bench.note(f"torch's scaled product of {CUBE} cubed", cube_speeds(bench), "TFLOP/s").median
        table: list[str] = []
        for name, (outputs, inputs) in sizes(shape).items():
            for scheme in schemes:
                if name not in only or (name == "head" and scheme not in HEAD):
                    continue
                modules = modules_of(scheme, outputs, inputs, device)
                table += measure(bench, f"{shape} {name}, {scheme}", modules, kernels, rows, copied, cube)
                del modules
                torch.cuda.empty_cache()
    print(*table, sep="\n")


def sizes(shape: str) -> dict[str, tuple[int, int]]:
    """Return the outputs and inputs of each product."""
    of: Mapping[str, Any] = COMMON | SHAPES[shape]
    hidden, width, dim = of["hidden_size"], of["intermediate_size"], of["head_dim"]
    heads, kv_heads = of["num_attention_heads"], of["num_key_value_heads"]
    return {
        "qkv": ((heads + 2 * kv_heads) * dim, hidden),
        "out": (hidden, heads * dim),
        "gate_up": (2 * width, hidden),
        "down": (hidden, width),
        "head": (of["vocab_size"], hidden),
    }


def modules_of(scheme: str, outputs: int, inputs: int, device: torch.device) -> list[nn.Module]:
    """Return modules with equal weights, each in memory of its own."""
    weight = torch.randn(outputs, inputs, dtype=torch.bfloat16, device=device) * inputs**-0.5
    first = named(scheme).make(nn.Parameter(weight, requires_grad=False), None)
    count = max(2, min(MOST, int(FRESH_BYTES / bytes_of(first))))
    return [first, *(deepcopy(first) for _ in range(count - 1))]


def bytes_of(module: nn.Module) -> int:
    return sum(each.nbytes for each in (*module.parameters(), *module.buffers()))


def measure(
    bench: Bench,
    name: str,
    modules: Sequence[nn.Module],
    kernels: GpuKernels,
    rows: Sequence[int],
    copied: float,
    cube: float,
) -> Iterator[str]:
    """Note each number of rows, and yield a line for each. `copied` in TB/s, `cube` in TFLOP/s."""
    weight, products = weight_of(modules[0]), [kernels.product(each) for each in modules]
    outputs, inputs = weight.shape
    given = {count: torch.randn(count, inputs, device=weight.device).bfloat16() for count in rows}
    launched = {count: launches(products[0], x, kernels) for count, x in given.items()}
    compile_all(lambda: [launch(products[0]) for ways in launched.values() for launch in ways.values()])
    for count, ways in launched.items():
        line = []
        for way, launch in ways.items():
            label = f"{name}, {count} rows{way}"
            check(label, launch(products[0]), as_multiplied(products[0], given[count]), weight)
            took = times(bench, partial(in_turn, launch, products), len(products))
            line.append(f"{bench.note(label, took, 'us').median:.1f} us{way}")
            shares = {"a copy's speed": (bytes_of(modules[0]), copied)}
            if count >= MANY:
                shares["that product's speed"] = 2 * count * outputs * inputs, cube
            for what, (work, speed) in shares.items():
                share = [100 * work / each / 1e6 / speed for each in took]
                line.append(f"{bench.note(f'{label}, of {what}', share, '%').median:.0f} % of {what}")
        yield f"{name}, {count} rows: {', '.join(line)}"


def in_turn(launch: Launch, products: Sequence[Product]) -> None:
    for each in products:
        launch(each)


def launches(product: Product, x: Tensor, kernels: GpuKernels) -> Mapping[str, Launch]:
    """Return the launches of a product of these rows, by what the label adds."""
    pdl = kernels.overlaps and (len(x) <= PDL_ROWS or product.uses_tma(len(x)))
    found: dict[str, Launch] = {"": lambda each: each.parts(x, pdl=pdl)}
    if product.rounds(len(x)):
        numbers, steps = quantize_fp8(x, x.shape[1])
        rounded = Normed(numbers, steps=steps, unrounded=x.dtype)
        found[" already rounded"] = lambda each: each.parts_of(rounded, pdl=pdl)
    return found


def check(label: str, parts: Tensor, x: Tensor, weight: Tensor) -> None:
    expected = F.linear(x, weight)
    error = float((parts.float().sum(0) - expected).norm() / expected.norm())
    if not error < WRONG:
        raise SystemExit(f"{label}: the result is wrong, with a relative error of {error:.1e}")


def as_multiplied(product: Product, x: Tensor) -> Tensor:
    """Return the rows in float32, rounded as the product does."""
    if not isinstance(product, Fp8Product):
        return x.float()
    numbers, steps = quantized(x)
    return numbers.float() * steps


def weight_of(module: nn.Module) -> Tensor:
    """Return the numbers that a module multiplies with, in float32."""
    dequantized: Callable[[], Tensor] | None = getattr(module, "dequantized", None)
    weight = cast(Tensor, module.weight) if dequantized is None else dequantized()
    return weight.float()


def cube_speeds(bench: Bench) -> list[float]:
    """TFLOP/s of torch's scaled product of large square matrices, with scales per row as in ours."""
    rows, weight = (torch.randn(CUBE, CUBE, device="cuda").to(KIND) for _ in range(2))
    steps = torch.ones(CUBE, 1, device="cuda")

    def product() -> None:
        torch._scaled_mm(rows, weight.T, scale_a=steps, scale_b=steps.T, out_dtype=torch.bfloat16)

    return [2 * CUBE**3 / each / 1e6 for each in times(bench, product, 1)]
