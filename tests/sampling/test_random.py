"""The counter-based random numbers: known values, uniform, and independent of each other."""

import numpy as np
import pytest

from engine.sampling.random import fold, uniform


def stream(seed: int, count: int) -> np.ndarray:
    return uniform(np.full(count, fold(seed), np.uint64), np.arange(count))


def chi_square(counts: np.ndarray) -> float:
    """Return how many standard deviations the counts are from uniform ones."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


@pytest.mark.parametrize("times", [1, 20])
def test_known_values(times: int) -> None:
    """A change here changes every reply to a request with a seed. Few rows have code of their own."""
    seeds = np.array([fold(seed) for seed in (0, 0, 1, -1, 2**64 - 1)] * times, np.uint64)
    got = uniform(seeds, np.array([0, 1, 0, 5, 5] * times))
    assert got.tolist() == times * [
        0.6524484863740322,
        0.7012121095215252,
        0.36818951565166946,
        0.15403342580516755,
        0.15403342580516755,
    ]


def test_a_number_depends_only_on_seed_and_index() -> None:
    seeds, indices = np.arange(50, dtype=np.uint64), np.arange(50) % 7
    together = uniform(seeds, indices)
    assert [uniform(seeds[i : i + 1], indices[i : i + 1])[0] for i in range(50)] == together.tolist()


def test_stays_in_range() -> None:
    drawn = stream(3, 100_000)
    assert drawn.min() >= 0.0
    assert drawn.max() < 1.0


def test_a_stream_is_uniform() -> None:
    for seed in (0, 1, 2, 2**40, 2**64 - 1):
        assert abs(chi_square(np.histogram(stream(seed, 100_000), 256, (0, 1))[0])) < 4


def test_first_numbers_of_neighboring_seeds_are_uniform() -> None:
    for index in (0, 1, 1000):
        drawn = uniform(np.arange(100_000, dtype=np.uint64), np.full(100_000, index))
        assert abs(chi_square(np.histogram(drawn, 256, (0, 1))[0])) < 4


def test_pairs_are_independent() -> None:
    one = stream(7, 100_000)
    pairs = {
        "next in the stream": (one[:-1], one[1:]),
        "next seed": (one, stream(8, 100_000)),
        "seeds a step apart": (one, stream(7 + 0x9E3779B97F4A7C15, 100_000)),
    }
    for what, (a, b) in pairs.items():
        assert abs(chi_square(np.histogram2d(a, b, 16, ((0, 1), (0, 1)))[0])) < 4, what
