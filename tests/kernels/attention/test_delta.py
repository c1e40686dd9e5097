"""The kernels of linear attention against their plain form, over runs of every kind."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.api.cache_spec import CacheSpec, LayerSpec, StateSpec
from engine.attention.delta import EPS, DeltaRule
from engine.attention.state_runs import RUN, DeviceRuns, StateRuns, write_runs
from engine.kv.store import KVLayer
from tests.cases import soak
from tests.kernels import oracles

SIZE, BLOCKS = 16, 12
SHAPES = {
    "grouped": StateSpec(heads=4, key_heads=2, key_dim=24, value_dim=40, taps=4),
    "single": StateSpec(heads=2, key_heads=2, key_dim=16, value_dim=16, taps=2),
}
# Of each row: how many tokens, and the position after them. The last two mixed rows continue each other.
ROWS = {"mixed": [(1, 20), (1, 1), (1, 32), (17, 17), (19, 40), (1, 5), (1, 6)], "decodes": [(1, 17), (1, 9)]}
TOLERANCES = {torch.float32: 1e-5, torch.float16: 3e-3}
DTYPES = [torch.float32, pytest.param(torch.float16, marks=pytest.mark.soak)]  # the same kernels


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def runs_of(rows: str) -> tuple[StateRuns, int]:
    """The runs of a step, and how many tokens it has."""
    lengths = [count for count, _ in ROWS[rows]]
    tables = np.arange(len(lengths) * 3, dtype=np.int32).reshape(-1, 3) % BLOCKS
    if rows == "mixed":
        tables[:6] = np.array([[0, 1, 0], [2, 0, 0], [3, 4, 0], [5, 6, 0], [7, 8, 9], [10, 0, 0]])
        tables[6] = tables[5]
    starts = np.cumsum([0, *lengths], dtype=np.int32)
    ends = np.array([end for _, end in ROWS[rows]], np.int32)
    return StateRuns(starts, ends, tables, SIZE, torch.device("cpu")), sum(lengths)


def given_to(runs: StateRuns, *, drafts: bool) -> DeviceRuns:
    """Return the runs as kernels take them. `drafts`: as a graph does, where a run may be several rows."""
    found = runs.on_device
    return DeviceRuns(found.tables, found.runs, found.longest, single=True) if drafts else found


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_states_are_those_of_the_plain_form(
    call: Callable[..., Any], shape: str, rows: str
) -> None:
    sizes, (runs, tokens) = SHAPES[shape], runs_of(rows)
    rule = DeltaRule(sizes, torch.zeros(sizes.channels, sizes.taps))
    qkv = rule.heads(numbers(tokens, sizes.channels))
    gates = numbers(tokens, 2, sizes.heads, seed=1).sigmoid()
    state = numbers(BLOCKS, sizes.heads, sizes.key_dim, sizes.value_dim, seed=2)
    plain = state.clone()
    expected = rule.advance_plainly(plain, qkv, gates, runs)
    joined = torch.cat([each.flatten(1) for each in qkv], 1)
    given = state, joined, gates, runs.on_device, sizes, SIZE
    found, (kept, *_) = call("linear.delta", "advance", *given)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(kept, plain, atol=1e-5, rtol=1e-5)
    assert not torch.equal(plain, state)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "rows", "drafts", "interleaved", "parts"),
    [
        ("grouped", "mixed", True, False, 2), ("grouped", "decodes", False, True, 2),
        ("single", "mixed", False, False, 1), *soak(("grouped", "mixed", False, True, 1)),
    ],
)  # fmt: skip
def test_a_layer_between_its_products_is_that_of_the_plain_form(
    call: Callable[..., Any],
    shape: str,
    rows: str,
    drafts: bool,
    interleaved: bool,
    parts: int,
    dtype: torch.dtype,
) -> None:
    """Both launches: the convolution and the gates, then the states, the norm and the output gate."""
    from engine.kernels.triton.linear.delta import OutputGate

    sizes, (runs, tokens) = SHAPES[shape], runs_of(rows)
    spec = CacheSpec.of_state(sizes)
    none, width = torch.empty(BLOCKS, SIZE, 0, 0, dtype=dtype), sizes.channels + sizes.heads * sizes.value_dim
    layer = KVLayer(
        spec, none, none, state=numbers(BLOCKS, sizes.heads, sizes.key_dim, sizes.value_dim),
        inputs=numbers(BLOCKS, sizes.taps - 1, sizes.channels, seed=1),
    )  # fmt: skip
    made = numbers(parts, tokens, width, seed=2).to(torch.float32 if parts > 1 else dtype)
    conv = numbers(sizes.channels, sizes.taps, seed=3).to(dtype)
    rates = numbers(parts, tokens, 2 * sizes.heads, seed=4)
    decay, bias = numbers(sizes.heads, seed=5), numbers(sizes.heads, seed=6)
    weight, on_device = numbers(sizes.value_dim, seed=7).to(dtype), given_to(runs, drafts=drafts)

    arguments = layer, made, conv, rates, decay, bias, on_device, sizes, EPS
    (qkv, gates), (changed, *_) = call("linear.prepare", "prepare", *arguments, interleaved=interleaved)
    gate = OutputGate(weight, 1e-5, made, interleaved)
    given = changed.state, qkv, gates, on_device, sizes, SIZE, gate
    found, (state, *_) = call("linear.delta", "advance", *given)

    mixed, gate_of, betas = oracles.linear_inputs(made, rates, sizes, dtype, interleaved=interleaved)
    expected_gates = oracles.state_gates(*betas, decay, bias)
    before = layer.inputs.clone()
    values = DeltaRule(sizes, conv).advance(mixed, expected_gates, layer, runs)
    expected = oracles.norm_gate(values, gate_of, weight, 1e-5)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(gates, expected_gates, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(changed.inputs, layer.inputs, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(state, layer.state, atol=1e-4, rtol=1e-4)
    assert not torch.equal(before, layer.inputs)


def test_rows_that_hold_drafts_are_one_run_of_a_graph() -> None:
    """Two requests may also be at successive positions; padding is no run. A piece of a prompt is one."""
    slots, contexts = np.array([3, 3, 3, 1, 2, 2, 0]), np.array([9, 10, 11, 12, 5, 6, 13])
    found = np.full((8, RUN), 77, np.int32)
    write_runs(found, slots, contexts, np.array([1, 1, 1, 1, 1, 1, 7]))
    assert found.tolist() == [
        [3, 0, 8, 3], [0] * 4, [0] * 4, [1, 3, 11, 1], [2, 4, 4, 2], [0] * 4, [0, 6, 6, 7], [0] * 4
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("longest", "states", "held"), [(64, True, True), (65, True, False), (65, False, True)]
)
def test_long_pieces_of_prompts_over_states_are_in_no_graph(longest: int, states: bool, held: bool) -> None:
    """A program would compute all of their tokens one after another."""
    from engine.attention.graph_work import LONGEST_RUN, GraphWork

    keys, state = (
        LayerSpec(heads=4, kv_heads=2, key_dim=64, value_dim=64, scale=0.1),
        CacheSpec.of_state(SHAPES["grouped"]),
    )
    work = GraphWork(
        [keys, state] if states else [keys], 512, torch.float16, torch.device("cpu"), pieces=True
    )
    assert work.holds(np.array([2, longest]), np.array([500, longest])) is held
    assert LONGEST_RUN == 64
