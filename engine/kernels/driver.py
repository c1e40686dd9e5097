"""What NVIDIA's driver offers and torch does not: copies of many pieces of memory without a kernel."""

import ctypes
from functools import cache
from typing import Any

import numpy as np

from engine.api.errors import EngineError
from engine.kernels.places import WORD, Places
from engine.kv.host_memory import Pairs

_LIBRARY = "libcuda.so.1"
_UNIFIED = 4  # an address says whether it is the device's
_SIDE = "x", "y", "kind", "host", "address", "array", "pitch"
# CUDA_MEMCPY2D: lines of `width` bytes, `pitch` apart.
RECTANGLE = np.dtype(
    [(f"{side}_{field}", np.uint64) for side in ("source", "target") for field in _SIDE]
    + [("width", np.uint64), ("lines", np.uint64)]
)


@cache
def library() -> Any:
    return ctypes.CDLL(_LIBRARY)


def ask(function: str, *arguments: Any) -> None:
    if code := getattr(library(), function)(*arguments):
        name = ctypes.c_char_p()
        library().cuGetErrorName(code, ctypes.byref(name))
        raise EngineError(f"{function}: error {code}, {(name.value or b'unknown').decode()}")


def rectangles(source: Places, target: Places, pairs: Pairs, least: int) -> tuple[np.ndarray, Pairs]:
    """For each run of at least `least` blocks that are neighbors on both sides, a rectangle of each tensor.

    [runs, tensors]. Also returns the pairs that are in no such run.
    """
    ordered = np.array(sorted(pairs), np.int64)
    begins = np.flatnonzero([True, *(np.diff(ordered, axis=0) != 1).any(1)])
    counts = np.diff([*begins, len(ordered)])
    firsts, lines = ordered[begins[counts >= least]].T, counts[counts >= least]
    found = np.zeros((len(lines), len(source.words)), RECTANGLE)
    for side, places, blocks in zip(("source", "target"), (source, target), firsts, strict=True):
        found[f"{side}_kind"] = _UNIFIED
        found[f"{side}_address"] = places.at(blocks)
        found[f"{side}_pitch"] = WORD * places.strides
    found["width"], found["lines"] = WORD * source.words, lines[:, None]
    rest = ordered[np.repeat(counts < least, counts)].tolist()
    return found, [(a, b) for a, b in rest]


def copy_rectangles(found: np.ndarray, stream: int) -> None:
    """A call for each. The host does not wait."""
    found = np.ascontiguousarray(found)
    on, first = ctypes.c_void_p(stream), found.ctypes.data
    for at in range(first, first + found.nbytes, found.itemsize):
        ask("cuMemcpy2DAsync_v2", ctypes.c_void_p(at), on)
