"""One layer's product on a CPU: torch's F.linear and the packed product, by rows and data type.

Also counts the batch sizes for which a row's result differs from the same row in a large batch: zero means
that batching changes no bit.
"""

from collections.abc import Callable
from functools import partial
from itertools import cycle

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.cpu.packed import PackedLinear
from minichat.bench.harness import Bench

DTYPES = (torch.float32, torch.bfloat16)
COPIES = 4  # alternating weights, so that none stays in the processor's cache


def run(bench: Bench, *, inputs: int = 2048, outputs: int = 6144, threads: int = 1, loops: int = 8) -> None:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    for dtype in DTYPES:
        weights = [torch.randn(outputs, inputs, generator=generator).to(dtype) for _ in range(COPIES)]
        packed = [PackedLinear(weight, None) for weight in weights]
        name = str(dtype).removeprefix("torch.")
        for rows in (1, 4, 8, 16, 64):
            x = torch.randn(rows, inputs, generator=generator).to(dtype)
            bench.compare(
                {
                    f"F.linear, {name}, {rows} rows": looped(F.linear, weights, x, loops),
                    f"packed, {name}, {rows} rows": looped(apply, packed, x, loops),
                },
                unit="s/product",
            )
        many = torch.randn(128, inputs, generator=generator).to(dtype)
        counts = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 63, 64, 100, 127)
        for kind, product in (("F.linear", partial(F.linear, weight=weights[0])), ("packed", packed[0])):
            whole = product(many)
            differing = sum(not torch.equal(product(many[:rows]), whole[:rows]) for rows in counts)
            bench.note(
                f"{kind}, {name}: of {len(counts)} row counts, differ from 128 rows", differing, "counts"
            )


def apply(x: Tensor, module: PackedLinear) -> Tensor:
    return module(x)


def looped(product: Callable[..., Tensor], weights: list, x: Tensor, loops: int) -> Callable[[], float]:
    turns = cycle(weights)

    def call() -> float:
        with torch.inference_mode():
            for _ in range(loops):
                product(x, next(turns))
        return float(loops)

    return call
