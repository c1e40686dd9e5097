"""The operations of a recurrent state, against loops over single numbers that count them."""

from dataclasses import replace
from functools import reduce
from operator import add
from typing import ClassVar

import pytest
import torch

from engine.api.cache_spec import CacheSpec, StateSpec
from engine.attention.delta import DeltaRule
from engine.attention.recurrence import Recurrence
from engine.attention.state_space import StateSpace
from tests.attention.test_delta import Rows

SPACE = StateSpec(heads=4, key_heads=2, key_dim=6, value_dim=5, taps=3)
DELTA = replace(SPACE, replaces=True)


class Number(float):
    """Counts the products and sums that it is in."""

    done: ClassVar[int] = 0

    def __mul__(self, other: float) -> "Number":
        Number.done += 1
        return Number(float(self) * other)

    def __add__(self, other: float) -> "Number":
        Number.done += 1
        return Number(float(self) + other)


def dot(left: list[Number], right: list[float]) -> Number:
    return reduce(add, (each * other for each, other in zip(left, right, strict=True)), Number())


def slowly(rule: Recurrence, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """The result of a text, [tokens, heads, value_dim]; only what `operations` is of is counted."""
    sizes, found = rule.sizes, []
    heads, keys, values = (range(count) for count in (sizes.heads, sizes.key_dim, sizes.value_dim))
    states = [[[Number() for _ in keys] for _ in values] for _ in heads]  # a row for each number of a value
    taps = rule.conv.tolist()
    wide = torch.cat([torch.zeros(sizes.taps - 1, sizes.channels), x]).T.tolist()
    for at in range(len(x)):
        pieces = [[Number(each) for each in line[at : at + sizes.taps]] for line in wide]
        mixed = torch.tensor([float(dot(*pair)) for pair in zip(pieces, taps, strict=True)])[None]
        assert isinstance(rule, DeltaRule | StateSpace)
        q, k, v = (part[0].double() for part in rule.heads(mixed / (1 + (-mixed).exp())))
        each = sizes.heads // sizes.key_heads
        out = torch.empty(sizes.heads, sizes.value_dim)
        for head in heads:
            query, key = q[head // each].tolist(), k[head // each].tolist()
            decay, share = (float(gate) for gate in gates[at, :, head])
            for place in values:
                value, line = float(v[head, place]), states[head][place]
                if isinstance(rule, StateSpace):
                    line = [number * torch.tensor(decay).exp().item() for number in line]
                    change = value * share
                else:
                    line = [number * decay for number in line]
                    change = (value - float(dot(line, key))) * share
                line = [number + Number(part) * change for number, part in zip(line, key, strict=True)]
                states[head][place] = line
                skipped = float(rule.skip[head]) * value if isinstance(rule, StateSpace) else 0.0
                out[head, place] = float(dot(line, query)) + skipped
        found.append(out)
    return torch.stack(found)


@pytest.mark.parametrize("sizes", [DELTA, SPACE], ids=["delta", "space"])
def test_the_operations_of_a_token_are_those_of_plain_loops(sizes: StateSpec) -> None:
    draw, count = torch.Generator().manual_seed(1), 5
    x, conv = (torch.randn(rows, sizes.channels, generator=draw) for rows in (count, sizes.taps))
    gates = torch.rand(count, 2, sizes.heads, generator=draw)
    rule = (
        DeltaRule(sizes, conv.T)
        if sizes.replaces
        else StateSpace(sizes, conv.T, skip=torch.randn(sizes.heads, generator=draw))
    )
    rows = Rows([count], lambda _: (x, gates, rule))
    rows.step([(0, count)])
    Number.done = 0
    torch.testing.assert_close(slowly(rule, x, gates), rows.out[0][0], rtol=1e-4, atol=1e-5)
    assert Number.done == count * sizes.operations


def test_a_layer_of_only_a_convolution_has_its_operations() -> None:
    taps = StateSpec(heads=1, key_heads=1, key_dim=0, value_dim=64, taps=3)
    assert taps.operations == 2 * 3 * 64
    assert CacheSpec.of_state(taps).state == taps
