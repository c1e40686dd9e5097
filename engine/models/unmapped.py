"""Safetensors read a tensor at a time, where a limit on addresses (`ulimit -v`) lets no file be mapped."""

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

_LONGEST_HEADER = 100_000_000  # bytes, as the library has it


class TensorSpan(NamedTuple):
    """What the header says of a tensor, asked for as the library is."""

    kind: str
    shape: tuple[int, ...]
    start: int  # in the file
    stop: int

    def get_dtype(self) -> str:
        return self.kind

    def get_shape(self) -> list[int]:
        return list(self.shape)


@contextmanager
def unmapped(file: Path, types: Mapping[str, str]) -> Iterator["Unmapped"]:
    """`types`: torch's names of the kinds that can be read."""
    with open(file, "rb") as opened:
        yield Unmapped(opened, dict(_pieces(opened)), types)


class Unmapped:
    """Stands in for the library's open file."""

    def __init__(
        self, file: BufferedReader, pieces: Mapping[str, TensorSpan], types: Mapping[str, str]
    ) -> None:
        self._file, self._pieces, self._types = file, pieces, types

    def keys(self) -> list[str]:
        return list(self._pieces)

    def get_slice(self, name: str) -> TensorSpan:
        return self._pieces[name]

    def get_tensor(self, name: str) -> "Tensor":
        import torch  # headers need none

        kind, shape, start, stop = self._pieces[name]
        if kind not in self._types:
            raise SafetensorError(f"{name} holds {kind}, which is not read")
        dtype: torch.dtype = getattr(torch, self._types[kind])
        if stop - start != math.prod(shape) * dtype.itemsize:
            raise SafetensorError(f"{name} has {stop - start} bytes, which are not {list(shape)} of {kind}")
        numbers = torch.empty(stop - start, dtype=torch.uint8)
        self._file.seek(start)
        if self._file.readinto(numbers.numpy().data) != stop - start:
            raise SafetensorError(f"it ends inside {name}")
        return numbers.view(dtype).view(shape)


def _pieces(file: BufferedReader) -> Iterator[tuple[str, TensorSpan]]:
    length = int.from_bytes(file.read(8), "little")
    if length > _LONGEST_HEADER:
        raise SafetensorError(f"its header would have {length} bytes")
    try:
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            start, stop = (8 + length + int(each) for each in entry["data_offsets"])
            if not 8 + length <= start <= stop:
                raise ValueError(f"{name} lies nowhere")
            yield name, TensorSpan(entry["dtype"], tuple(map(int, entry["shape"])), start, stop)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SafetensorError(f"its header cannot be read: {error!r}") from error
