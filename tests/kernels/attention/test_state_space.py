"""The kernels of a Mamba-2 layer against their plain forms, over runs of every kind."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.api.cache_spec import CacheSpec, StateSpec
from engine.attention.state_space import StateSpace
from engine.kv.store import KVLayer
from tests.kernels import oracles
from tests.kernels.attention.test_delta import BLOCKS, DTYPES, SIZE, TOLERANCES, given_to, numbers, runs_of

SHAPES = {
    "grouped": StateSpec(heads=4, key_heads=2, key_dim=24, value_dim=40, taps=4),
    "one-group": StateSpec(heads=3, key_heads=1, key_dim=16, value_dim=8, taps=2),
}
EPS = 1e-5


def layer_of(sizes: StateSpec, dtype: torch.dtype) -> KVLayer:
    none = torch.empty(BLOCKS, SIZE, 0, 0, dtype=dtype)
    return KVLayer(
        CacheSpec.of_state(sizes), none, none,
        state=numbers(BLOCKS, sizes.heads, sizes.key_dim, sizes.value_dim),
        inputs=numbers(BLOCKS, sizes.taps - 1, sizes.channels, seed=1),
    )  # fmt: skip


def space_of(sizes: StateSpec, dtype: torch.dtype, *, biased: bool) -> StateSpace:
    conv = numbers(sizes.channels, sizes.taps, seed=3).to(dtype)
    bias = numbers(sizes.channels, seed=4).to(dtype) if biased else None
    return StateSpace(sizes, conv, bias, skip=numbers(sizes.heads, seed=5))


def gates_of(given: Tensor, decay: Tensor, bias: Tensor, limits: tuple[float, float]) -> Tensor:
    steps = F.softplus(given.float() + bias).clamp(*limits)
    return torch.stack((-decay.exp() * steps, steps), 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "rows", "drafts", "parts", "limits"),
    [
        ("grouped", "mixed", False, 1, (0.0, math.inf)), ("grouped", "mixed", True, 2, (0.3, 0.9)),
        ("grouped", "decodes", False, 2, (0.0, math.inf)), ("one-group", "mixed", False, 1, (0.4, math.inf)),
    ],
)  # fmt: skip
def test_a_layer_between_its_products_is_that_of_the_plain_form(
    call: Callable[..., Any],
    shape: str,
    rows: str,
    drafts: bool,
    parts: int,
    limits: tuple[float, float],
    dtype: torch.dtype,
) -> None:
    """Three launches: the convolution and the step sizes, then the states, then the gate and the norm."""
    from engine.kernels.triton.linear.convolve import StepSizes

    sizes, (runs, tokens) = SHAPES[shape], runs_of(rows)
    values, layer = sizes.heads * sizes.value_dim, layer_of(sizes, dtype)
    space = space_of(sizes, dtype, biased=shape == "grouped")
    made = numbers(parts, tokens, values + sizes.channels + sizes.heads, seed=2)
    made = made if parts > 1 else made.to(dtype)
    decay, bias = numbers(sizes.heads, seed=6), numbers(sizes.heads, seed=7)
    weight, on_device = numbers(values, seed=8).to(dtype), given_to(runs, drafts=drafts)

    steps = StepSizes(values + sizes.channels, decay, bias, limits)
    arguments = layer, made, values, space.conv, space.conv_bias, on_device, steps
    (mixed, gates), (changed, *_) = call("linear.convolve", "convolve", *arguments)
    given = changed.state, mixed, gates, space.skip, on_device, sizes, SIZE
    found, (state, *_) = call("linear.state_space", "advance", *given, exact=True)
    grouped = found.flatten(1), made, weight, EPS, sizes.key_heads
    normed, _ = call("norm.group_norm", "gated_group_norm", *grouped)

    gate, x, step = oracles.added(made, dtype).split([values, sizes.channels, sizes.heads], 1)
    expected_gates = gates_of(step, decay, bias, limits)
    before = layer.state.clone(), layer.inputs.clone()
    wide = space.convolved(x, layer, runs)
    heads = space.heads(wide)
    expected = space.advance_plainly(layer.state, heads, expected_gates, runs)
    torch.testing.assert_close(gates, expected_gates, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(mixed, wide, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(changed.inputs, layer.inputs, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(state, layer.state, atol=1e-4, rtol=1e-4)
    assert not any(map(torch.equal, before, (layer.state, layer.inputs)))

    gated = (expected.flatten(1) * F.silu(gate.float())).unflatten(1, (sizes.key_heads, -1))
    even = gated * torch.rsqrt(gated.square().mean(-1, keepdim=True) + EPS)
    expected_norm = (even.flatten(1) * weight.float()).to(dtype)
    torch.testing.assert_close(normed, expected_norm, atol=TOLERANCES[dtype] * 10, rtol=TOLERANCES[dtype])


@pytest.mark.cuda
@pytest.mark.parametrize("exact", [True, False])
def test_a_long_prompt_in_chunks(exact: bool) -> None:
    """In the sizes of a real model, against tokens one by one on a CPU."""
    import numpy as np

    from engine.attention.state_runs import StateRuns
    from engine.kernels.triton.linear.state_space import advance

    sizes = StateSpec(heads=8, key_heads=2, key_dim=128, value_dim=64, taps=4)
    tables, starts, ends = np.arange(4, dtype=np.int32)[None], np.array([0, 700]), np.array([700])
    mixed = numbers(700, sizes.channels) / 4
    gates = gates_of(numbers(700, sizes.heads), numbers(sizes.heads), numbers(sizes.heads), (0, math.inf))
    state, space = torch.zeros(4, 8, 128, 64), space_of(sizes, torch.float32, biased=False)
    cpu, gpu = (StateRuns(starts, ends, tables, 256, torch.device(on)) for on in ("cpu", "cuda"))
    there = [each.cuda() for each in (state, mixed, gates, space.skip)]
    expected = space.advance_plainly(state, space.heads(mixed), gates, cpu)
    found = advance(*there, gpu.on_device, sizes, 256, exact=exact).cpu()
    allowed = 1e-4 if exact else 3e-3
    assert (found - expected).norm() < allowed * expected.norm()
    assert (there[0].cpu()[:3] - state[:3]).norm() < allowed * state[:3].norm()
