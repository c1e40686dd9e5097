"""Weights in four bits for one pass, as the engine's scheme keeps them."""

import pytest
import torch
from torch import nn

from engine.quant.int4 import grouped
from training.rounding import in_four_bits, rounded


@pytest.mark.parametrize("group", [32, 64, 128])
def test_it_is_what_the_scheme_makes_of_the_weight(group: int) -> None:
    weight = torch.randn(8, 256, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(in_four_bits(weight, group), grouped(weight, group).dequantized(), atol=1e-5)


def test_the_gradient_is_taken_there_and_the_whole_weights_come_back() -> None:
    matrix = nn.Parameter(torch.randn(4, 128, generator=torch.Generator().manual_seed(2)))
    before = matrix.detach().clone()
    with rounded([matrix], 64):
        assert torch.equal(matrix, in_four_bits(before, 64))
        matrix.square().sum().backward()
    assert torch.equal(matrix, before)
    assert matrix.grad is not None
    assert torch.allclose(matrix.grad, 2 * in_four_bits(before, 64))


def test_they_come_back_from_a_pass_that_failed() -> None:
    matrix = nn.Parameter(torch.randn(4, 128, generator=torch.Generator().manual_seed(3)))
    before = matrix.detach().clone()
    with pytest.raises(RuntimeError), rounded([matrix], 64):
        raise RuntimeError
    assert torch.equal(matrix, before)
