"""Quantized weights: one layer's product with each scheme by rows, and the time to change the scheme.

`floats`: weights in 4-bit floats on a CPU: their products, and what other schemes change of them.
"""

import time
from collections.abc import Callable, Sequence
from itertools import cycle

import torch
from torch import Tensor, nn

from engine.devices import pick
from engine.execution.weights import Weights
from engine.models.decoder import Decoder
from engine.models.find import find_model
from engine.models.registry import load_model
from engine.quant.fp4 import NUMBERS, OFFSET, Fp4Weight, floats_of, held
from engine.quant.packing import MX, NV
from engine.quant.registry import named, names, why_not
from minichat.bench.harness import Bench

OWN = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}  # the same as `none`
PARTS = ("rows", "change", "floats")
COPIES = 4  # alternating weights, so that none stays in the processor's cache


def run(
    bench: Bench,
    *,
    only: tuple[str, ...] = ("rows",),
    inputs: int = 2048,
    outputs: int = 6144,
    device: str = "cpu",
    threads: int = 1,
    loops: int = 2,
    model: str = "pocket",
    dtype: str = "bfloat16",
    counts: tuple[int, ...] = (1, 4, 16, 64),
) -> None:
    """`dtype`: the type of the input, and of the weights before quantization. `counts`: of rows."""
    torch.set_num_threads(threads)
    place = pick(device)
    if "rows" in only:
        if dtype not in OWN:
            raise SystemExit(f"dtype must be one of {', '.join(OWN)}, got {dtype!r}")
        rows(bench, place, (inputs, outputs), counts, loops, dtype)
    if "change" in only:
        change(bench, place, model)
    if "floats" in only:
        floats(bench, (inputs, outputs), counts, loops)


def rows(
    bench: Bench, place: torch.device, shape: tuple[int, int], counts: Sequence[int], loops: int, kind: str
) -> None:
    inputs, outputs = shape
    dtype, generator = getattr(torch, kind), torch.Generator().manual_seed(0)
    weights = [torch.randn(outputs, inputs, generator=generator).to(place, dtype) for _ in range(COPIES)]
    schemes = [name for name in names() if name != OWN[kind] and why_not(name, place, dtype) is None]
    products = {name: [named(name).make(weight, None) for weight in weights] for name in schemes}
    for name, made in products.items():
        nbytes = sum(each.nbytes for each in (*made[0].parameters(), *made[0].buffers()))
        bench.note(f"{name}: bits a weight", nbytes * 8 / (inputs * outputs), "bits")
    for count in counts:
        x = torch.randn(count, inputs, generator=generator).to(place, dtype)
        bench.compare(
            {f"{name}, {count} rows": looped(made, x, loops) for name, made in products.items()},
            unit="s/product",
        )


def floats(bench: Bench, shape: tuple[int, int], counts: Sequence[int], loops: int) -> None:
    inputs, outputs = shape
    generator = torch.Generator().manual_seed(0)
    plain = [torch.randn(outputs, inputs, generator=generator) for _ in range(COPIES)]
    kept = {
        name: [in_floats(each, group) for each in plain] for name, group in (("NVFP4", NV), ("MXFP4", MX))
    }
    for name, weights in kept.items():
        exact = weights[0].dequantized()
        for scheme in ("bf16", "int8", "fp8", "int4-32", "int4-64", "int4-128"):
            weight = exact.bfloat16() if scheme == "bf16" else exact
            again = named(scheme).make(weight, None)(torch.eye(inputs, dtype=weight.dtype)).T.float()
            change = (again - exact).norm() / exact.norm()
            bench.note(f"{name} as {scheme}: change of the weights", 100 * float(change), "%")
    products = {
        scheme: [named(scheme).make(each.bfloat16(), None) for each in plain]
        for scheme in ("none", "int8", "int4-32")
    }
    products |= {name: [held(each, None, torch.bfloat16) for each in kept[name]] for name in kept}
    for count in counts:
        x = torch.randn(count, inputs, generator=generator).bfloat16()
        calls = {f"{name}, {count} rows": looped(made, x, loops) for name, made in products.items()}
        bench.compare(calls, unit="s/product")


def in_floats(weight: Tensor, group: int) -> Fp4Weight:
    """Round a weight to 4-bit floats."""
    groups = weight.unflatten(1, (-1, group))
    scale = groups.abs().amax(-1) / NUMBERS[-1]
    if group == NV:
        stored = scale.to(torch.float8_e4m3fn).view(torch.uint8)
    else:
        stored = (scale.log2().floor() + OFFSET).to(torch.uint8)
    known = torch.tensor(NUMBERS)
    ratio = groups.abs() / floats_of(stored, group)[..., None]
    numbers = torch.bucketize(ratio, (known[1:] + known[:-1]) / 2).to(torch.uint8) | (groups < 0).byte() << 3
    pairs = numbers.flatten(1).unflatten(1, (-1, 2))
    return Fp4Weight(pairs[..., 0] | pairs[..., 1] << 4, stored, torch.ones(len(weight)), group)


def looped(products: Sequence[nn.Module], x: Tensor, loops: int) -> Callable[[], float]:
    turns = cycle(products)

    def call() -> float:
        with torch.inference_mode():
            for _ in range(loops):
                next(turns)(x)
            if x.is_cuda:
                torch.cuda.synchronize()
        return float(loops)

    return call


def change(bench: Bench, place: torch.device, model: str) -> None:
    """Change from the checkpoint's type to each scheme, and back."""
    made = load_model(find_model(model), device=place)
    assert isinstance(made, Decoder)
    weights = Weights(made, "none", share=1.0)
    for name in ("int8", "int4", "fp8"):
        if why_not(name, place, made.embed.dtype) is not None:
            continue
        for scheme in (name, "none"):
            began, plan = time.perf_counter(), weights.plan(scheme, lambda more: None)
            for part in range(plan.parts):
                weights.replace(part, plan.new)
            if place.type == "cuda":
                torch.cuda.synchronize()
            bench.note(f"{model}: {plan.old} to {plan.new}", time.perf_counter() - began, "s")
            weights.settle(plan.new)
