"""Mamba-2's states in blocks, one by one and in chunks, against their plain form over whole texts."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.attention.state_space import StateSpace
from tests.attention.test_delta import LONGEST, SIZES, Rows, assert_steps_change_no_bit, in_steps
from tests.examples import examples
from tests.models.tiny import plain_state_space


@dataclass(frozen=True, slots=True)
class InChunks(StateSpace):
    """As in 16 bits, where results need not be those of other cuts to the bit."""

    def advance_plainly(self, *given: object) -> Tensor:
        return StateSpace.advance_in_chunks(self, *given)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class NeverOneByOne(StateSpace):
    def advance_plainly(self, *given: object) -> Tensor:
        raise AssertionError("token by token")


def inputs(count: int, kind: type[StateSpace] = StateSpace) -> tuple[Tensor, Tensor, StateSpace]:
    draw = torch.Generator().manual_seed(count)
    x = torch.randn(count, SIZES.channels, generator=draw)
    steps = torch.rand(count, SIZES.heads, generator=draw)
    gates = torch.stack((-steps * torch.rand(SIZES.heads, generator=draw) * 2, steps), 1)
    conv = torch.randn(SIZES.channels, SIZES.taps, generator=draw)
    bias, skip = (torch.randn(width, generator=draw) for width in (SIZES.channels, SIZES.heads))
    return x, gates, kind(SIZES, conv, bias, skip=skip)


def chunked(count: int) -> tuple[Tensor, Tensor, StateSpace]:
    return inputs(count, InChunks)


@examples(8)
@given(st.lists(st.integers(1, LONGEST), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_steps_and_other_rows_change_no_bit(lengths: list[int], random: object) -> None:
    assert_steps_change_no_bit(lengths, random, inputs)


@examples(8)
@given(st.lists(st.integers(1, LONGEST), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_chunks_give_what_tokens_one_by_one_do(lengths: list[int], random: object) -> None:
    rows, plain = Rows(lengths, chunked), Rows(lengths, inputs)
    in_steps(rows, lengths, random)
    plain.step([*enumerate(lengths)])
    for text, out in enumerate(rows.out):
        expected = plain_state_space(*rows.texts[text], plain.rule)  # type: ignore[arg-type]
        torch.testing.assert_close(torch.cat(out), expected, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(torch.cat(out), torch.cat(plain.out[text]), atol=2e-5, rtol=1e-4)
    for mine, other in zip(rows.layer.tensors(), plain.layer.tensors(), strict=True):
        torch.testing.assert_close(mine, other, atol=2e-5, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize("text", [33, 64])
def test_a_cut_between_chunks_changes_no_bit(text: int) -> None:
    """Blocks of 16 tokens, so chunks of as many."""
    whole, cut = Rows([text], chunked), Rows([text], chunked)
    whole.step([(0, text)])
    for count in (16, text - 16):
        cut.step([(0, count)])
    assert torch.equal(torch.cat(whole.out[0]), torch.cat(cut.out[0]))


def test_a_model_in_16_bits_computes_in_chunks() -> None:
    found = Rows([20], lambda count: inputs(count, NeverOneByOne))
    found.texts = [(found.texts[0][0].bfloat16(), found.texts[0][1])]
    found.step([(0, 20)])
    expected = plain_state_space(*found.texts[0], found.rule)  # type: ignore[arg-type]
    assert found.out[0][0].dtype is torch.float32
    torch.testing.assert_close(found.out[0][0], expected, atol=2e-5, rtol=1e-4)


def test_a_full_block_has_the_state_at_its_end() -> None:
    rows, short = Rows([50], chunked), Rows([50], chunked)
    rows.step([(0, 50)])
    short.step([(0, 32)])
    for mine, other in zip(rows.layer.tensors(), short.layer.tensors(), strict=True):
        assert torch.equal(mine[:2], other[:2])
        assert mine[2:4].isfinite().all() and other[2:].isnan().all()
