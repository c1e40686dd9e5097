"""The GPUs that processes may use, by the names that CUDA_VISIBLE_DEVICES takes. Needs no torch."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_DEVICES = Path("/dev")


def gpu_names() -> list[str]:
    """Those of this process, by their numbers in it."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for each in visible.split(",") if (name := each.strip()) not in ("", "-1")]
    nodes = [each for each in _DEVICES.glob("nvidia*") if each.name.removeprefix("nvidia").isdigit()]
    return [str(number) for number in range(len(nodes))]


def gpus_of_rank(rank: int, first: int, gpus: Sequence[T]) -> list[T]:
    """The GPUs of a rank's process, in an order that gives its own GPU the number of rank 0's, `first`."""
    found = [*gpus]
    found[first], found[first + rank] = found[first + rank], found[first]
    return found
