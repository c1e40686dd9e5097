"""Weights rounded to four bits for one pass, as by the engine's schemes."""

from functools import partial

import pytest
import torch
from torch import nn

from engine.quant.fp8_linear import ScaledWeight, quantized
from engine.quant.int4 import GROUPS, grouped
from training.recipe import Schedule
from training.rounding import ROUNDINGS, Rounding, in_four_bits, in_fp4, in_fp8, in_nf4, rounded
from training.train import weights_of


@pytest.mark.parametrize("group", GROUPS)
def test_rounding_matches_the_int4_scheme(group: int) -> None:
    weight = torch.randn(8, 256, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(in_four_bits(weight, group), grouped(weight, group).dequantized(), atol=1e-5)


@pytest.mark.parametrize(("kind", "rounding"), [("fp4", in_fp4), ("nf4", in_nf4)])
def test_rounding_matches_the_bnb_schemes(kind: str, rounding: Rounding) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    weight = torch.randn(8, 256, generator=torch.Generator().manual_seed(4))
    there_and_back = functional.dequantize_4bit(*functional.quantize_4bit(weight, quant_type=kind))
    assert torch.allclose(rounding(weight), there_and_back, atol=1e-3)


def test_rounding_matches_the_weights_of_the_fp8_scheme() -> None:
    weight = torch.randn(8, 256, generator=torch.Generator().manual_seed(7))
    assert torch.allclose(in_fp8(weight), ScaledWeight(*quantized(weight), 256).dequantized(), atol=1e-5)


def test_training_rounds_with_every_group_size_of_int4() -> None:
    weight = torch.randn(8, 256, generator=torch.Generator().manual_seed(5))
    made = [rounding(weight) for rounding in ROUNDINGS]
    missing = [g for g in GROUPS if not any(torch.equal(in_four_bits(weight, g), each) for each in made)]
    assert missing == []
    for other in (in_fp4, in_nf4, in_fp8):
        assert any(torch.equal(other(weight), each) for each in made)


def test_the_gradient_is_taken_at_the_rounded_weights_and_the_weights_are_restored() -> None:
    matrix = nn.Parameter(torch.randn(4, 128, generator=torch.Generator().manual_seed(2)))
    before = matrix.detach().clone()
    with rounded([matrix], partial(in_four_bits, group=64)):
        assert torch.equal(matrix, in_four_bits(before, 64))
        matrix.square().sum().backward()
    assert torch.equal(matrix, before)
    assert matrix.grad is not None
    assert torch.allclose(matrix.grad, 2 * in_four_bits(before, 64))


def test_the_weights_are_restored_after_an_error() -> None:
    matrix = nn.Parameter(torch.randn(4, 128, generator=torch.Generator().manual_seed(3)))
    before = matrix.detach().clone()
    with pytest.raises(RuntimeError), rounded([matrix], partial(in_four_bits, group=64)):
        raise RuntimeError
    assert torch.equal(matrix, before)


def test_every_second_step_and_all_of_the_last_third_are_rounded() -> None:
    schedule = Schedule(steps=30, rows=1, matrix_rate=0.02, vector_rate=4e-3, warmup=1, rounded_every=2)
    rounded_steps = [step for step in range(30) if _is_rounded(step, schedule)]
    assert rounded_steps == [*range(0, 20, 2), *range(20, 30)]


def _is_rounded(step: int, schedule: Schedule) -> bool:
    matrix = nn.Parameter(torch.randn(4, 128, generator=torch.Generator().manual_seed(6)))
    before = matrix.detach().clone()
    with weights_of(step, [matrix], schedule):
        return not torch.equal(matrix, before)
