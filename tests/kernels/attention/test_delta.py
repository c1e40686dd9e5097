"""The kernel of the gated delta rule against its plain form, over runs of every kind."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from engine.api.config import StateSpec
from engine.attention.delta import DeltaRule, StateRuns

SIZE, BLOCKS = 16, 12
SHAPES = {
    "grouped": StateSpec(heads=4, key_heads=2, key_dim=24, value_dim=40, taps=4),
    "single": StateSpec(heads=2, key_heads=2, key_dim=16, value_dim=16, taps=2),
}
# Of each row: how many tokens, and the position after them. The last two rows continue each other.
ROWS = {"mixed": [(1, 20), (1, 1), (1, 32), (17, 17), (9, 40), (1, 5), (1, 6)], "decodes": [(1, 17), (1, 9)]}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_states_are_those_of_the_plain_form(
    call: Callable[..., Any], shape: str, rows: str
) -> None:
    sizes, lengths = SHAPES[shape], [count for count, _ in ROWS[rows]]
    draw = torch.Generator().manual_seed(0)
    tables = np.arange(len(lengths) * 3, dtype=np.int32).reshape(-1, 3) % BLOCKS
    if rows == "mixed":
        tables[6] = tables[5]
        tables[:6] = np.array([[0, 1, 0], [2, 0, 0], [3, 4, 0], [5, 6, 0], [7, 8, 9], [10, 0, 0]])
        tables[6] = tables[5]
    starts = np.cumsum([0, *lengths], dtype=np.int32)
    ends = np.array([end for _, end in ROWS[rows]], np.int32)
    runs = StateRuns(starts, ends, tables, SIZE, torch.device("cpu"))
    rule = DeltaRule(sizes, torch.zeros(sizes.channels, sizes.taps))
    q, k, v = rule.heads(torch.randn(sum(lengths), sizes.channels, generator=draw))
    gates = torch.rand(sum(lengths), 2, sizes.heads, generator=draw)
    state = torch.randn(BLOCKS, sizes.heads, sizes.key_dim, sizes.value_dim, generator=draw)
    plain = state.clone()
    expected = rule.advance_plainly(plain, (q, k, v), gates, runs)
    found, (kept, *_) = call("linear.delta", "advance", state, q, k, v, gates, runs.for_kernel, SIZE)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(kept, plain, atol=1e-5, rtol=1e-5)
    assert not torch.equal(plain, state)
