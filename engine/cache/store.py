"""The tensors behind the blocks, on the device and, for swapped requests, in host memory."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from engine.config import LayerSpec


@dataclass(slots=True)
class KVLayer:
    """One layer's share of the cache: [blocks, block_size, kv_heads, dim] each."""

    spec: LayerSpec
    keys: Tensor
    values: Tensor
    sinks: Tensor | None = None  # [heads]: a learned score beside the keys, for models that have one

    @property
    def block_size(self) -> int:
        return self.keys.shape[1]


class KVStore:
    """A pair of tensors a layer: [blocks, block_size, kv_heads, dim]."""

    def __init__(
        self,
        specs: Sequence[LayerSpec],
        *,
        blocks: int,
        block_size: int,
        host_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
        sinks: Mapping[int, Tensor] = MappingProxyType({}),
    ) -> None:
        def layer(spec: LayerSpec, count: int, where: torch.device, pinned: bool = False) -> KVLayer:
            shape = (count, block_size, spec.kv_heads)
            keys = _zeros((*shape, spec.key_dim), dtype, where, pinned)
            values = _zeros((*shape, spec.value_dim), dtype, where, pinned)
            return KVLayer(spec, keys, values)

        pinned, host = device.type == "cuda", torch.device("cpu")
        self.layers = [layer(spec, blocks, device) for spec in specs]
        for index, scores in sinks.items():
            self.layers[index].sinks = scores
        self.host = [layer(spec, host_blocks, host, pinned) for spec in specs] if host_blocks else []

    @property
    def nbytes(self) -> int:
        return sum(each.keys.nbytes + each.values.nbytes for each in self.layers)

    @property
    def host_nbytes(self) -> int:
        return sum(each.keys.nbytes + each.values.nbytes for each in self.host)

    @staticmethod
    def block_bytes(specs: Sequence[LayerSpec], block_size: int, dtype: torch.dtype) -> int:
        width = sum(spec.kv_heads * (spec.key_dim + spec.value_dim) for spec in specs)
        return width * block_size * dtype.itemsize

    def read_per_token(self) -> tuple[tuple[int, int], ...]:
        """Bytes that a token of a row's context costs to read, by the window of the layers (0: none)."""
        found: dict[int, int] = {}
        for each in self.layers:
            width = each.spec.kv_heads * (each.spec.key_dim + each.spec.value_dim)
            window = each.spec.window or 0
            found[window] = found.get(window, 0) + width * each.keys.element_size()
        return tuple(found.items())

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks on the device, each (from, to)."""
        self._move(self.layers, self.layers, pairs)

    def swap_out(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Device blocks to host blocks."""
        self._move(self.layers, self.host, pairs)

    def swap_in(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Host blocks to device blocks."""
        self._move(self.host, self.layers, pairs)

    @staticmethod
    def _move(source: list[KVLayer], target: list[KVLayer], pairs: Sequence[tuple[int, int]]) -> None:
        if not pairs:
            return
        froms, tos = (torch.tensor(side) for side in zip(*pairs, strict=True))
        for a, b in zip(source, target, strict=True):
            for old, new in ((a.keys, b.keys), (a.values, b.values)):
                new[tos.to(new.device)] = old[froms.to(old.device)].to(new.device)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, pinned: bool) -> Tensor:
    """In plain main memory, pages that nobody has touched yet cost neither time nor room."""
    if device.type != "cpu" or pinned:
        return torch.zeros(shape, dtype=dtype, device=device, pin_memory=pinned)
    lazy = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
    return torch.from_numpy(lazy).view(dtype).view(shape)
