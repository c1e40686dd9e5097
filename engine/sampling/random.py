"""Counter-based random numbers: each depends only on its seed and its index in the reply.

So a request samples the same tokens in any batch, and after it is preempted and resumed.
"""

import numpy as np

_GAMMA = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio: splitmix64's step
_MASK = 2**64 - 1
_FEW = 12  # rows for which Python is faster than numpy, whose calls take half a microsecond each


def fold(seed: int) -> int:
    """Reduce any integer to the 64 bits that seed a stream."""
    return seed & _MASK


def uniform(seeds: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return one number in [0, 1) per row, from uint64 `seeds` and the indices of the tokens to sample."""
    if len(seeds) <= _FEW:
        return np.array([*map(_number, seeds.tolist(), indices.tolist())], np.float64)
    steps = (indices.astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA)
    bits = _mix(_mix(seeds + np.uint64(_GAMMA)) + steps)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(bits: np.ndarray) -> np.ndarray:
    """splitmix64's finalizer: every output bit depends on every input bit."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _number(seed: int, index: int) -> float:
    """The same for one row."""
    return (_mixed(_mixed(seed + _GAMMA) + (index + 1) * _GAMMA) >> 11) * 2.0**-53


def _mixed(bits: int) -> int:
    bits &= _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)
