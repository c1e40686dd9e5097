"""Keys in four bits, by channel: each group of 16 tokens has a center and a spread for each channel.

A token stores its key's distance from the centers, in units of the spreads, as `packing` does: four bits a
channel and a scale. The first token of a group decides its centers and spreads, from its own key and the 16
before it as they are stored. So a stored key depends only on the tokens up to it, and nothing is ever stored
a second time: a partly filled block is like any other. docs/kv.md has the figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.cells import AttentionRow, CacheCells
from engine.kv.store import GROUP, KVLayer

NARROWEST = 16  # no channel's spread is below this part of the widest one


def frame(first: Tensor, before: Tensor | None) -> Tensor:
    """The centers and spreads [kv_heads, 2, dim] of a group that starts with the key [kv_heads, dim].

    `before`: the keys of the group before it [GROUP, kv_heads, dim], if there is one.
    """
    low = high = first.float()
    if before is not None:
        low, high = torch.minimum(low, before.amin(0)), torch.maximum(high, before.amax(0))
    spreads = high / 2 - low / 2
    widest = spreads.amax(-1, keepdim=True)
    spreads = torch.where(widest > 0, torch.maximum(spreads, widest / NARROWEST), 1)
    return torch.stack((low / 2 + high / 2, spreads), -2)


def within(keys: Tensor, frames: Tensor) -> Tensor:
    """Keys [..., dim] as distances from the centers of [..., 2, dim], in units of the spreads."""
    return (keys.float() - frames[..., 0, :]) / frames[..., 1, :]


def outside(distances: Tensor, frames: Tensor) -> Tensor:
    """The keys at these distances. Changes `distances`."""
    return distances.mul_(frames[..., 1, :]).add_(frames[..., 0, :])


@dataclass(slots=True)
class ChannelCells(CacheCells):
    """All slots of a layer's keys, and their channels by group."""

    channels: CacheCells

    @classmethod
    def of_keys(cls, layer: KVLayer) -> CacheCells:
        """A layer's keys, in whatever scheme."""
        plain = CacheCells.of_layer(layer.keys, layer.key_scales)
        if layer.channels is None:
            return plain
        channels = CacheCells.of_layer(layer.channels, layer.channel_scales)
        return cls(plain.all, plain.scales, plain.block_size, channels)

    def write(self, places: Tensor, fresh: Tensor, rows: Sequence[AttentionRow]) -> None:
        """Write rows that only continue a group together, and the others group by group."""
        begin = 0
        for row in rows:
            first = row.context - (row.stop - row.start)
            if row.stop - row.start > 1 or first % GROUP == 0:
                self._append(places[begin : row.start], fresh[begin : row.start])
                self._write_row(places, fresh, row, first)
                begin = row.stop
        self._append(places[begin:], fresh[begin:])

    def of(self, row: AttentionRow, start: int, stop: int) -> Tensor:
        first, last = start // GROUP, -(-stop // GROUP)
        frames = self.channels.of(row._replace(place=row.place // GROUP), first, last)
        distances = CacheCells.of(self, row, first * GROUP, last * GROUP).unflatten(0, (-1, GROUP))
        found = outside(distances, frames.unsqueeze(1)).flatten(0, 1)
        return found[start - first * GROUP : stop - first * GROUP]

    def _write_row(self, places: Tensor, fresh: Tensor, row: AttentionRow, first: int) -> None:
        at = first
        while at < row.context:
            stop = min(at // GROUP * GROUP + GROUP, row.context)
            tokens = slice(row.start + at - first, row.start + stop - first)
            if at % GROUP == 0:
                before = self.of(row, at - GROUP, at) if at else None
                frames = frame(fresh[tokens.start], before).unsqueeze(0)
                self.channels.write(places[tokens][:1] // GROUP, frames, ())
            self._append(places[tokens], fresh[tokens])
            at = stop

    def _append(self, places: Tensor, fresh: Tensor) -> None:
        """Write tokens whose groups have their channels."""
        if len(places):
            frames = self.channels.at(places // GROUP)
            CacheCells.write(self, places, within(fresh, frames), ())


def keys_of(layer: KVLayer, blocks: Tensor) -> Tensor:
    """The keys of whole blocks, [blocks, block_size, kv_heads, key_dim] in float32."""
    at = blocks.to(layer.keys.device)
    found = CacheCells.read(layer.keys, layer.key_scales, at)
    if layer.channels is None:
        return found
    frames = CacheCells.read(layer.channels, layer.channel_scales, at).unsqueeze(2)
    return outside(found.unflatten(1, (-1, GROUP)), frames).flatten(1, 2)
