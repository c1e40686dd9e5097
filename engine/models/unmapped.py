"""Reads safetensors one tensor at a time.

Used if an address space limit (`ulimit -v`) prevents mapping the file.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from safetensors import SafetensorError

if TYPE_CHECKING:
    from torch import Tensor

_LONGEST_HEADER = 100_000_000  # bytes, the library's limit


class TensorSpan(NamedTuple):
    """A tensor's header, with the library's methods."""

    kind: str
    shape: tuple[int, ...]
    start: int  # offset in the file
    stop: int

    def get_dtype(self) -> str:
        return self.kind

    def get_shape(self) -> list[int]:
        return list(self.shape)


@contextmanager
def unmapped(file: Path, types: Mapping[str, str]) -> Iterator["Unmapped"]:
    """Open a file. `types`: torch's names of the readable dtypes."""
    with open(file, "rb") as opened:
        yield Unmapped(opened, dict(_pieces(opened)), types)


class Unmapped:
    """Replaces the library's open file."""

    def __init__(
        self, file: BufferedReader, pieces: Mapping[str, TensorSpan], types: Mapping[str, str]
    ) -> None:
        self._file, self._pieces, self._types = file, pieces, types

    def keys(self) -> list[str]:
        return list(self._pieces)

    def get_slice(self, name: str) -> TensorSpan:
        return self._pieces[name]

    def get_tensor(self, name: str) -> "Tensor":
        import torch  # headers do not need it

        kind, shape, start, stop = self._pieces[name]
        if kind not in self._types:
            raise SafetensorError(f"{name} holds {kind}, which is not supported")
        dtype: torch.dtype = getattr(torch, self._types[kind])
        if stop - start != math.prod(shape) * dtype.itemsize:
            raise SafetensorError(
                f"{name} has {stop - start} bytes, which does not match {list(shape)} of {kind}"
            )
        numbers = torch.empty(stop - start, dtype=torch.uint8)
        self._file.seek(start)
        if self._file.readinto(numbers.numpy().data) != stop - start:
            raise SafetensorError(f"the file ends inside {name}")
        return numbers.view(dtype).view(shape)


def _pieces(file: BufferedReader) -> Iterator[tuple[str, TensorSpan]]:
    length = int.from_bytes(file.read(8), "little")
    if length > _LONGEST_HEADER:
        raise SafetensorError(f"the header is too large: {length} bytes")
    try:
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            start, stop = (8 + length + int(each) for each in entry["data_offsets"])
            if not 8 + length <= start <= stop:
                raise ValueError(f"{name} has invalid offsets")
            yield name, TensorSpan(entry["dtype"], tuple(map(int, entry["shape"])), start, stop)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SafetensorError(f"the header cannot be read: {error!r}") from error
