"""The slots of a layer's cache, as the torch backend writes and reads them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from engine.attention.packing import pack, unpack
from engine.kv.store import bits


class AttentionRow(NamedTuple):
    """One row of the batch, and where its context is in the cache."""

    start: int  # its tokens are start..stop of the batch
    stop: int
    context: int
    place: int  # index of its first token in the cache
    table: Tensor | None  # None if its blocks are contiguous


def parts_of(row: AttentionRow, chunk: int | None) -> Iterator[AttentionRow]:
    """Split a row where chunks of its text begin, so that all tokens of a part see the same oldest one."""
    if chunk is None:
        yield row
        return
    first = row.context - (row.stop - row.start)  # the position of the part's first token
    while first < row.context:
        end = min(row.context, first - first % chunk + chunk)
        start = row.stop - (row.context - first)
        yield row._replace(start=start, stop=start + end - first, context=end)
        first = end


@dataclass(slots=True)
class CacheCells:
    """All slots of a layer's keys or values, [places, kv_heads, dim], with scales if compressed."""

    all: Tensor
    scales: Tensor | None
    block_size: int

    @classmethod
    def of_layer(cls, numbers: Tensor, scales: Tensor | None) -> "CacheCells":
        return cls(numbers.flatten(0, 1), None if scales is None else scales.flatten(0, 1), numbers.shape[1])

    def write(self, places: Tensor, fresh: Tensor, rows: Sequence[AttentionRow]) -> None:
        """Write a step's tokens to their places. `rows`: which of them are whose."""
        if self.scales is None:
            self.all.index_copy_(0, places, fresh)
            return
        packed, scales = pack(fresh, self.all.dtype)
        bits(self.all).index_copy_(0, places, bits(packed))
        self.scales.index_copy_(0, places, scales.to(self.scales.dtype))

    def of(self, row: AttentionRow, start: int, stop: int) -> Tensor:
        """Return a row's positions from start to stop in float32, as a view if possible."""
        found = self._at(self.all, row, start, stop)
        if self.scales is None:
            return found.float()
        return unpack(found, self._at(self.scales, row, start, stop))

    def at(self, places: Tensor) -> Tensor:
        """Return these slots in float32."""
        return self.read(self.all, self.scales, places)

    @staticmethod
    def read(numbers: Tensor, scales: Tensor | None, at: Tensor) -> Tensor:
        """Return the entries `at` of stored numbers in float32."""
        found = bits(numbers)[at].view(numbers.dtype)
        return found.float() if scales is None else unpack(found, scales[at])

    def _at(self, places: Tensor, row: AttentionRow, start: int, stop: int) -> Tensor:
        if row.table is None:
            return places[row.place + start : row.place + stop]
        size = self.block_size
        skipped = start // size
        blocks = places.unflatten(0, (-1, size)).index_select(0, row.table[skipped : -(-stop // size)])
        return blocks.flatten(0, 1)[start - skipped * size : stop - skipped * size]
