"""Random numbers by counting: one depends on its seed and its place in the reply, on nothing else.

So a request draws the same tokens whatever shares its batch, and after it was preempted and resumed.
"""

import numpy as np

_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio: splitmix64's step
_MASK = 2**64 - 1


def fold(seed: int) -> int:
    """Any whole number as the 64 bits that a stream starts from."""
    return seed & _MASK


def uniform(seeds: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1), one a row: from uint64 `seeds` and the number of the reply's token to be drawn."""
    steps = (indices.astype(np.uint64) + np.uint64(1)) * _GAMMA
    bits = _mix(_mix(seeds + _GAMMA) + steps)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(bits: np.ndarray) -> np.ndarray:
    """splitmix64's finisher: every bit of the answer hangs on every bit that comes in."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
