"""Bytes with a scale: the error of packing, and its bounds."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.attention.packing import MOST, pack, unpack
from engine.kv.store import SCALE

TYPES = pytest.mark.parametrize("dtype", list(MOST))
# Half a step of int8, relative to the largest number; half of the last of three bits, relative to each
# number.
INT8, FP8 = 0.5 / 127 * (1 + 2**-8), 2**-4


def numbers(seed: int, dim: int, size: float) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(7, 3, dim, generator=rng) * size * torch.rand(7, 3, 1, generator=rng)


@given(st.integers(0, 999), st.sampled_from([1, 8, 64, 80]), st.sampled_from([1e-30, 1e-3, 1.0, 300.0, 1e30]))
def test_the_error_is_at_most_half_a_step(seed: int, dim: int, size: float) -> None:
    expected = numbers(seed, dim, size)
    largest = expected.abs().amax(-1, keepdim=True)
    packed, scales = pack(expected, torch.int8)
    assert ((unpack(packed, scales) - expected).abs() <= INT8 * largest).all()
    packed, scales = pack(expected, torch.float8_e4m3fn)
    # Below the smallest normal number, 2**-6, steps are as wide as there: 2**-9 of the scale.
    bound = torch.maximum(FP8 * expected.abs(), scales.float().unsqueeze(-1) * 2**-10) * (1 + 2**-8)
    assert ((unpack(packed, scales) - expected).abs() <= bound).all()


@TYPES
def test_unpacking_is_the_number_times_the_scale(dtype: torch.dtype) -> None:
    """Every possible byte, against torch's own conversion."""
    every = torch.arange(256, dtype=torch.uint8).view(dtype)
    every = every[every.float().isfinite()].view(1, 1, -1)
    for scale in (1.0, 0.0123, 77.0):
        scales = torch.full((1, 1), scale, dtype=SCALE)
        assert torch.equal(unpack(every, scales), every.float() * scales.float().unsqueeze(-1))


@TYPES
def test_each_head_of_each_token_is_packed_separately(dtype: torch.dtype) -> None:
    expected = numbers(0, 64, 1.0)
    packed, scales = pack(expected, dtype)
    for token in range(len(expected)):
        for head in range(3):
            own, scale = pack(expected[token, head], dtype)
            assert torch.equal(own.view(torch.uint8), packed[token, head].view(torch.uint8))
            assert scale == scales[token, head]


@TYPES
def test_nan_and_infinity_are_kept(dtype: torch.dtype) -> None:
    expected = numbers(1, 16, 1.0)
    expected[0, 0, 3], expected[1, 0, 0], expected[2] = torch.nan, torch.inf, 0.0
    got = unpack(*pack(expected, dtype))
    assert got[0, 0].isnan().all()
    assert not got[1, 0].isfinite().any()
    assert (got[2] == 0).all()
    assert got[3:].isfinite().all() and got[:2, 1:].isfinite().all()


def test_four_bits_err_by_at_most_half_a_step() -> None:
    for size in (1e-30, 1e-3, 1.0, 300.0, 1e30):
        expected = numbers(2, 64, size)
        packed, scales = pack(expected, torch.uint8)
        assert packed.shape == (7, 3, 32)
        bound = expected.abs().amax(-1, keepdim=True) / 15 * (1 + 2**-4)
        assert ((unpack(packed, scales) - expected).abs() <= bound).all()


def test_every_byte_is_two_numbers_of_four_bits() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(256, 1)
    low, high = unpack(every, torch.full((256,), 2.0, dtype=SCALE)).T
    assert low.tolist() == [2 * (byte % 16 - 7.5) for byte in range(256)]
    assert high.tolist() == [2 * (byte // 16 - 7.5) for byte in range(256)]


def test_four_bits_keep_zero_and_show_nan() -> None:
    expected = numbers(1, 16, 1.0)
    expected[0, 0, 3], expected[1, 0, 0], expected[2] = torch.nan, torch.inf, 0.0
    got = unpack(*pack(expected, torch.uint8))
    assert got[0, 0].isnan().all() and not got[1, 0].isfinite().any()
    assert (got[2] == 0).all() and got[3:].isfinite().all()
