"""The gated delta rule on a GPU in a CUDA graph, in the shape of Qwen3-Next: decodes by rows, and one prompt.

The limit of a decode is the time that reading and writing the states takes at the speed of a device copy.
Each result is checked against the plain form.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.gpu_attention import copy_speeds
from benchmarks.gpu.gpu_experts import times
from engine.api.config import StateSpec
from engine.attention.delta import DeltaRule
from engine.attention.state_runs import StateRuns
from engine.kernels.triton.linear.delta import advance
from minichat.bench.harness import Bench

SHAPE = StateSpec(heads=32, key_heads=16, key_dim=128, value_dim=128, taps=4)
SIZE, POSITION = 64, 1000  # tokens of a block; where decodes begin
WRONG = 1e-4  # relative error from which on a result is wrong


def run(
    bench: Bench, *, rows: tuple[int, ...] = (1, 8, 32, 128), prompts: tuple[int, ...] = (512, 4096)
) -> None:
    if not torch.cuda.is_available():
        raise SystemExit(f"gpu_linear needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    speed = bench.note("a device copy, read and written", copy_speeds(bench), "TB/s").median
    line = []
    with torch.inference_mode():
        for count in rows:
            found = bench.note(f"decode, {count} rows", measure(bench, [1] * count, POSITION), "us").median
            least = 2 * 4 * count * SHAPE.heads * SHAPE.key_dim * SHAPE.value_dim / speed / 1e6
            share = bench.note(
                f"decode, {count} rows, of the limit by bytes", 100 * least / found, "%"
            ).median
            line.append(f"{count} rows: {found:.1f} us ({share:.0f} %)")
        for tokens in prompts:
            found = bench.note(f"prompt of {tokens} tokens", measure(bench, [tokens], 0), "us").median
            line.append(f"{tokens} tokens: {found:.0f} us")
    print("one layer,", ", ".join(line))


def measure(bench: Bench, lengths: Sequence[int], position: int) -> list[float]:
    """Return the microseconds of a launch for rows of these lengths, after a check of its result."""
    device = torch.device("cuda")
    widest = -(-(position + max(lengths)) // SIZE)
    tables = np.arange(len(lengths), dtype=np.int32)[:, None] + len(lengths) * np.arange(
        widest, dtype=np.int32
    )
    starts, ends = np.cumsum([0, *lengths], dtype=np.int32), np.array(lengths, np.int32) + position
    runs = StateRuns(starts, ends, tables, SIZE, device)
    rule = DeltaRule(SHAPE, torch.empty(0))
    q, k, v = rule.heads(torch.randn(sum(lengths), SHAPE.channels, device=device))
    gates = torch.rand(sum(lengths), 2, SHAPE.heads, device=device)
    state = torch.randn(tables.size, SHAPE.heads, SHAPE.key_dim, SHAPE.value_dim, device=device) / 10
    check(rule, state.clone(), (q, k, v), gates, runs)
    qkv, on_device = joined(q, k, v), runs.on_device
    return times(bench, lambda: advance(state, qkv, gates, on_device, SHAPE, SIZE), 1)


def joined(*parts: Tensor) -> Tensor:
    return torch.cat([each.flatten(1) for each in parts], 1)


def check(
    rule: DeltaRule, state: Tensor, qkv: tuple[Tensor, Tensor, Tensor], gates: Tensor, runs: StateRuns
) -> None:
    plain = state.clone()
    found = advance(state, joined(*qkv), gates, runs.on_device, SHAPE, SIZE)
    pairs = (
        (found, rule.advance_plainly(plain, qkv, gates, runs)),
        (state, plain),
    )
    for found, expected in pairs:
        error = float((found - expected).norm() / expected.norm())
        if not error < WRONG:
            raise SystemExit(f"the result is wrong, with a relative error of {error:.1e}")
