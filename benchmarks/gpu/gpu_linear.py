"""Recurrent states on a GPU in a CUDA graph: decodes by rows, and one prompt.

The gated delta rule in the shape of Qwen3-Next, and a state space in that of Nemotron-H-8B. The limit of a
decode is the time that reading and writing the states takes at the speed of a device copy. Each result is
checked against the plain form.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu.gpu_attention import copy_speeds
from benchmarks.gpu.gpu_experts import times
from engine.api.cache_spec import StateSpec
from engine.attention.delta import DeltaRule
from engine.attention.state_runs import StateRuns
from engine.attention.state_space import StateSpace
from engine.kernels.triton.linear import delta, state_space
from minichat.bench.harness import Bench

DELTA = StateSpec(heads=32, key_heads=16, key_dim=128, value_dim=128, taps=4)
SPACE = StateSpec(heads=128, key_heads=8, key_dim=128, value_dim=64, taps=4)
SIZE, POSITION = 64, 200  # tokens of a block; where decodes begin
WRONG = {True: 1e-4, False: 3e-3}  # relative error from which on a result is wrong: in float32, in tf32

Launch = Callable[[Tensor], Tensor]  # of a layer's states: changes them, and returns what is read


def run(
    bench: Bench, *, rows: tuple[int, ...] = (1, 8, 32, 128), prompts: tuple[int, ...] = (512, 4096)
) -> None:
    if not torch.cuda.is_available():
        raise SystemExit(f"gpu_linear needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    speed = bench.note("a device copy, read and written", copy_speeds(bench), "TB/s").median
    with torch.inference_mode():
        for name, (shape, made) in KINDS.items():
            line = []
            for count in rows:
                label = f"{name}, decode, {count} rows"
                found = bench.note(label, measure(bench, shape, made, [1] * count, POSITION), "us").median
                least = 2 * 4 * count * shape.heads * shape.key_dim * shape.value_dim / speed / 1e6
                share = bench.note(f"{label}, of the limit by bytes", 100 * least / found, "%").median
                line.append(f"{count} rows: {found:.1f} us ({share:.0f} %)")
            for tokens in prompts:
                label = f"{name}, prompt of {tokens} tokens"
                found = bench.note(label, measure(bench, shape, made, [tokens], 0), "us").median
                line.append(f"{tokens} tokens: {found:.0f} us")
            print(f"one layer of {name},", ", ".join(line))


def measure(
    bench: Bench, shape: StateSpec, made: "Made", lengths: Sequence[int], position: int
) -> list[float]:
    """Return the microseconds of a launch for rows of these lengths, after a check of its result."""
    widest = -(-(position + max(lengths)) // SIZE)
    tables = np.arange(len(lengths), dtype=np.int32)[:, None] + len(lengths) * np.arange(
        widest, dtype=np.int32
    )
    starts, ends = np.cumsum([0, *lengths], dtype=np.int32), np.array(lengths, np.int32) + position
    runs = StateRuns(starts, ends, tables, SIZE, torch.device("cuda"))
    launched, plainly, exact = made(sum(lengths), runs)
    state = torch.randn(tables.size, shape.heads, shape.key_dim, shape.value_dim, device="cuda") / 10
    plain, changed = state.clone(), state.clone()
    for found, expected in ((launched(changed), plainly(plain)), (changed, plain)):
        error = float((found - expected).norm() / expected.norm())
        if not error < WRONG[exact]:
            raise SystemExit(f"the result is wrong, with a relative error of {error:.1e}")
    del plain, changed
    return times(bench, lambda: launched(state), 1)


def of_delta(tokens: int, runs: StateRuns) -> tuple[Launch, Launch, bool]:
    rule = DeltaRule(DELTA, torch.empty(0))
    qkv = rule.heads(torch.randn(tokens, DELTA.channels, device="cuda"))
    gates = torch.rand(tokens, 2, DELTA.heads, device="cuda")
    joined, on_device = torch.cat([each.flatten(1) for each in qkv], 1), runs.on_device
    return (
        lambda state: delta.advance(state, joined, gates, on_device, DELTA, SIZE),
        lambda state: rule.advance_plainly(state, qkv, gates, runs),
        True,
    )


def of_space(tokens: int, runs: StateRuns) -> tuple[Launch, Launch, bool]:
    """As in a model in bfloat16, whose chunks of prompts are products in tf32."""
    steps = F.softplus(torch.randn(tokens, SPACE.heads, device="cuda") - 2)
    gates = torch.stack((-steps * torch.rand(SPACE.heads, device="cuda") * 4, steps), 1)
    mixed = torch.randn(tokens, SPACE.channels, device="cuda") / 4
    space = StateSpace(SPACE, torch.empty(0), skip=torch.randn(SPACE.heads, device="cuda"))
    on_device = runs.on_device
    return (
        lambda state: state_space.advance(
            state, mixed, gates, space.skip, on_device, SPACE, SIZE, exact=False
        ),
        lambda state: space.advance_plainly(state, space.heads(mixed), gates, runs),
        on_device.single,
    )


Made = Callable[[int, StateRuns], tuple[Launch, Launch, bool]]
KINDS: Mapping[str, tuple[StateSpec, Made]] = {
    "Qwen3-Next": (DELTA, of_delta),
    "Nemotron-H": (SPACE, of_space),
}
