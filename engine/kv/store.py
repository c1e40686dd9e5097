"""The tensors behind the blocks, on the device and, for swapped requests, in host memory."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.api.cache_spec import KvSchemeName, LayerSpec, keeps_state, why_not_packed
from engine.api.errors import BadInput
from engine.kv import pinned
from engine.kv.host_memory import HostMemory, Pairs
from engine.timeline import timed

# A compressed cache stores each number in one byte, and a scale for each head of each token. In int4, a byte
# holds two numbers, and keys have a center and a spread for each channel of each group of tokens.
PACKED: Mapping[KvSchemeName, torch.dtype] = {
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
    "int4": torch.uint8,
}
GROUP = 16  # tokens; the size of any block is a multiple of it
SCALE = torch.bfloat16  # the range of float32; values are divided by the rounded scale

_TENSORS = (
    "keys", "values", "key_scales", "value_scales", "channels", "channel_scales", "state", "inputs"
)  # fmt: skip

Mover = Callable[[Sequence[Tensor], Sequence[Tensor], Pairs], None]


@dataclass(slots=True)
class KVLayer:
    """One layer's part of the cache; each tensor is [blocks, block_size, kv_heads, dim], in int4 dim / 2.

    In a cache of latents, the values are a view of the keys.
    In a compressed cache, a value is the stored number times its scale [blocks, block_size, kv_heads].
    """

    spec: LayerSpec
    keys: Tensor
    values: Tensor
    sinks: Tensor | None = None  # [heads]: a learned score in addition to the keys, in models that have one
    key_scales: Tensor | None = None  # both scales are set, or neither
    value_scales: Tensor | None = None
    # int4: of keys, [blocks, groups, kv_heads, 2, key_dim] bytes and [blocks, groups, kv_heads, 2] scales.
    channels: Tensor | None = None
    channel_scales: Tensor | None = None
    # In a layer with a recurrent state, which has no keys: that after the last token written in a block
    # [blocks, heads, key_dim, value_dim], and the convolution's last inputs [blocks, taps - 1, channels].
    state: Tensor | None = None
    inputs: Tensor | None = None
    group: int = field(default=0, kw_only=True)  # of layers with the same block tables
    slopes: Tensor | None = field(default=None, init=False)  # [heads], those of the spec

    def __post_init__(self) -> None:
        if self.spec.slopes:
            self.slopes = torch.tensor(self.spec.slopes, dtype=torch.float32, device=self.keys.device)

    @property
    def block_size(self) -> int:
        return self.keys.shape[1]

    def tensors(self) -> Iterator[Tensor]:
        """The tensors that together hold a block."""
        if self.state is not None and self.inputs is not None:
            if self.spec.state is not None and self.spec.state.key_dim:
                yield self.state
            yield self.inputs
        if not self.spec.has_keys:
            return
        yield self.keys
        if not self.spec.latent:
            yield self.values
        if self.key_scales is not None and self.value_scales is not None:
            yield from (self.key_scales, self.value_scales)
        if self.channels is not None and self.channel_scales is not None:
            yield from (self.channels, self.channel_scales)


_Allocate = Callable[[tuple[int, ...], torch.dtype], Tensor]


class _Allocation(NamedTuple):
    """Which tensors a layer of the cache has."""

    block_size: int
    dtype: torch.dtype
    device: torch.device
    scheme: KvSchemeName

    def layer(self, spec: LayerSpec, count: int, allocate: _Allocate) -> KVLayer:
        """Allocate a layer of `count` blocks."""
        found = self._keys_and_values(spec, count, allocate)
        if (state := spec.state) is not None:  # always in float32: errors would add up over a long text
            found.state = allocate((count, state.heads, state.key_dim, state.value_dim), torch.float32)
            found.inputs = allocate((count, state.taps - 1, state.channels), torch.float32)
        return found

    def _keys_and_values(self, spec: LayerSpec, count: int, allocate: _Allocate) -> KVLayer:
        shape = (count, self.block_size, spec.kv_heads)
        stored, per_byte = PACKED.get(self.scheme, self.dtype), 2 if self.scheme == "int4" else 1
        if not spec.has_keys:
            none = zeros((*shape, 0), self.dtype, self.device)
            return KVLayer(spec, none, none)
        keys = allocate((*shape, spec.key_dim // per_byte), stored)
        if spec.latent:
            return KVLayer(spec, keys, keys[..., : spec.value_dim])
        values = allocate((*shape, spec.value_dim // per_byte), stored)
        if self.scheme == "none":
            return KVLayer(spec, keys, values)
        found = KVLayer(spec, keys, values, None, allocate(shape, SCALE), allocate(shape, SCALE))
        if self.scheme == "int4":
            grouped = (count, self.block_size // GROUP, spec.kv_heads, 2)
            found.channels = allocate((*grouped, spec.key_dim), torch.int8)
            found.channel_scales = allocate(grouped, torch.float32)
        return found


class KVStore:
    """A KVLayer for each model layer, on the device and in host memory."""

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
        scheme: KvSchemeName = "none",
        pin: Callable[[int], Tensor] | None = None,
        groups: Sequence[Sequence[int]] = (),
    ) -> None:
        """`pin`: allocates bytes of pinned host memory, on a thread. None: torch's, if on a GPU.

        `groups`: the layers of each group, the first being a largest; none: all are in one. The first layers
        of all groups use the same memory, in different blocks; so do the second ones, and so on.
        """
        if problem := why_not_packed(specs, scheme):
            raise BadInput(problem)
        self.scheme, self.dtype = scheme, dtype  # dtype: of the uncompressed values
        self.mover: Mover = move_blocks
        cpu = torch.device("cpu")
        self.groups = [[*each] for each in groups] or [[*range(len(specs))]]
        held = [specs[index] for index in self.groups[0]]  # by a block
        allocation = _Allocation(block_size, dtype, device, scheme)
        self.memory = [allocation.layer(spec, blocks, partial(zeros, device=device)) for spec in held]
        self.layers = self._grouped(specs)
        for index, scores in sinks.items():
            assert specs[index].sinks, "plans follow the spec"
            self.layers[index].sinks = scores
        filled = None
        if pin is None and device.type == "cuda":
            pin, filled = partial(_pinned, device), pinned.pinned_ahead.give_back
        each = self.block_bytes(held, block_size, dtype, scheme)

        def slab(count: int) -> list[KVLayer]:
            memory = zeros((count * each,), torch.uint8, cpu) if pin is None else pin(count * each)
            return slab_in(memory, count)

        def slab_in(memory: Tensor, count: int) -> list[KVLayer]:
            parts = _Parts(memory.view(count, each))
            return [allocation.layer(spec, count, parts.next) for spec in held]

        self.block_nbytes, self._slab_in = each, slab_in
        per_slab = host_blocks if pin is None else pinned.SLAB // each
        self.host = HostMemory(host_blocks, per_slab, slab, filled, background=pin is not None)

    def _grouped(self, specs: Sequence[LayerSpec]) -> list[KVLayer]:
        """All layers, over the memory of the first group's."""
        found = {
            index: memory if not group else replace(memory, spec=specs[index], group=group)
            for group, layers in enumerate(self.groups)
            for index, memory in zip(layers, self.memory, strict=False)
        }
        return [found[index] for index in range(len(specs))]

    @property
    def kind(self) -> str:
        """The name of the storage format: the dtype or the compression scheme."""
        return str(self.dtype).removeprefix("torch.") if self.scheme == "none" else self.scheme

    @property
    def specs(self) -> list[LayerSpec]:
        return [each.spec for each in self.layers]

    @property
    def keeps_state(self) -> bool:
        """Whether a step changes blocks that it also reads, so that running it twice is not the same."""
        return keeps_state(self.specs)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for each in self.memory for tensor in each.tensors())

    @property
    def host_blocks(self) -> int:
        return self.host.size

    def host_ready(self, *, least: int = 0) -> int:
        return self.host.ask(least)

    @property
    def host_nbytes(self) -> int:
        return sum(tensor.nbytes for slab in self.host.slabs for each in slab for tensor in each.tensors())

    @staticmethod
    def block_bytes(
        specs: Sequence[LayerSpec], block_size: int, dtype: torch.dtype, scheme: KvSchemeName = "none"
    ) -> int:
        per_token = sum(_group_bytes(spec, dtype, scheme) for spec in specs)
        return block_size * per_token // GROUP + KVStore.state_bytes(specs)

    @staticmethod
    def state_bytes(specs: Iterable[LayerSpec]) -> int:
        """Bytes of a block's recurrent state."""
        return torch.float32.itemsize * sum(spec.state.numbers for spec in specs if spec.state is not None)

    def read_per_token(self) -> tuple[tuple[int, int], ...]:
        """Bytes read for each token of context, by the layers' window or chunk (0: neither)."""
        found: dict[int, int] = {}
        for each in self.layers:
            window = each.spec.reach or 0
            found[window] = found.get(window, 0) + _group_bytes(each.spec, self.dtype, self.scheme)
        return tuple((window, nbytes // GROUP) for window, nbytes in found.items())

    def state_traffic(self) -> int:
        """Bytes of recurrent states that a step reads and writes for each row."""
        return 2 * self.state_bytes(self.specs)

    def state_operations(self) -> int:
        """Operations of a token with recurrent states."""
        return sum(spec.state.operations for spec in self.specs if spec.state is not None)

    def operations_per_pair(self) -> tuple[tuple[int, int], ...]:
        """Operations of attention for a token and one that it sees, by the layers' window or chunk."""
        found: dict[int, int] = {}
        for each in self.layers:
            window = each.spec.reach or 0
            done = 2 * each.spec.heads * (each.spec.key_dim + each.spec.value_dim)
            found[window] = found.get(window, 0) + done
        return tuple(found.items())

    def clear(self) -> None:
        """Free all memory."""
        self.layers.clear()
        self.memory.clear()
        self.host.clear()

    def become(self, other: "KVStore") -> None:
        """Take over another store's scheme and memory. References to this store see the new tensors."""
        self.scheme, self.dtype = other.scheme, other.dtype
        self.layers[:], self.memory[:], self.host = other.layers, other.memory, other.host
        self.block_nbytes, self._slab_in = other.block_nbytes, other._slab_in

    def resize(self, blocks: int, held: Sequence[int]) -> None:
        """Resize to `blocks` device blocks, layer by layer, and copy the blocks in `held`.

        References to a layer see its new tensors. If memory runs out, some layers are already resized.
        """
        most = min(blocks, len(self.layers[0].keys))
        if not 0 < blocks < 2**31 or not all(0 <= block < most for block in held):  # block tables are int32
            raise BadInput(f"a cache of {blocks} blocks cannot keep the blocks {held!r:.60}")
        at = torch.as_tensor(held, dtype=torch.int64)
        for place, each in enumerate(self.memory):
            there = at.to(each.keys.device)
            sharing = [self.layers[layers[place]] for layers in self.groups if place < len(layers)]
            for name in ("keys",) if each.spec.latent else _TENSORS:
                if (old := getattr(each, name)) is not None and len(old) != blocks:
                    new = zeros((blocks, *old.shape[1:]), old.dtype, old.device)
                    bits(new)[there] = bits(old)[there]
                    for layer in sharing:
                        setattr(layer, name, new)
                    del old, new
            for layer in sharing if each.spec.latent else ():
                layer.values = layer.keys[..., : layer.spec.value_dim]

    def copy(self, pairs: Pairs) -> None:
        """Copy whole blocks on the device, each (from, to)."""
        self._move(self.memory, self.memory, pairs)

    def swap_out(self, pairs: Pairs) -> None:
        """Copy device blocks to host blocks."""
        for slab, part in self.host.parts([(host, block) for block, host in pairs]):
            self.copy_out(slab, [(block, place) for place, block in part])

    def swap_in(self, pairs: Pairs) -> None:
        """Copy host blocks to device blocks."""
        for slab, part in self.host.parts(pairs):
            self.copy_in(slab, part)

    def slab_over(self, memory: np.ndarray | Tensor, blocks: int) -> list[KVLayer]:
        """Blocks in other memory, such as that which engines share."""
        return self._slab_in(torch.as_tensor(memory), blocks)

    def copy_out(self, slab: list[KVLayer], pairs: Pairs) -> None:
        """Copy device blocks to blocks of a slab."""
        self._move(self.memory, slab, pairs)

    def copy_in(self, slab: list[KVLayer], pairs: Pairs) -> None:
        """Copy blocks of a slab to device blocks."""
        self._move(slab, self.memory, pairs)

    def close(self) -> None:
        """Stop preparing host memory."""
        self.host.stop()

    def _move(self, source: list[KVLayer], target: list[KVLayer], pairs: Pairs) -> None:
        if pairs:
            sources, targets = (
                [each for layer in side for each in layer.tensors()] for side in (source, target)
            )
            self.mover(sources, targets, pairs)


def move_blocks(sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: Pairs) -> None:
    """Copy block `a` of each source to block `b` of the matching target, for each pair (a, b)."""
    froms, tos = (torch.tensor(side) for side in zip(*pairs, strict=True))
    for old, new in zip(map(bits, sources), map(bits, targets), strict=True):
        new[tos.to(new.device)] = old[froms.to(old.device)].to(new.device)


def bits(tensor: Tensor) -> Tensor:
    """The same memory in a type that can be indexed everywhere; one-byte floats cannot."""
    return tensor.view(torch.uint8) if tensor.dtype is torch.float8_e4m3fn else tensor


def _group_bytes(spec: LayerSpec, dtype: torch.dtype, scheme: KvSchemeName) -> int:
    """Bytes of GROUP tokens in one layer."""
    numbers = GROUP * (spec.key_dim + (0 if spec.latent else spec.value_dim))
    scales = 0 if scheme == "none" else GROUP * 2 * SCALE.itemsize
    if scheme == "int4":
        return spec.kv_heads * (numbers // 2 + scales + 2 * spec.key_dim + 2 * torch.float32.itemsize)
    return spec.kv_heads * (numbers * PACKED.get(scheme, dtype).itemsize + scales)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of zeros. In plain main memory, untouched pages cost no time and no space."""
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    lazy = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
    return torch.from_numpy(lazy).view(dtype).view(shape)


def _pinned(device: torch.device, nbytes: int) -> Tensor:
    if (ahead := pinned.pinned_ahead.take(nbytes)) is not None:
        return torch.from_numpy(ahead)
    with torch.cuda.device(device), timed("host memory pinned by torch"):
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)


class _Parts:
    """One allocation for many tensors, in which everything of a block is contiguous."""

    def __init__(self, memory: Tensor) -> None:
        """`memory`: [blocks, bytes per block]."""
        self._memory, self._used = memory, 0

    def next(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the next part of each block, as one tensor."""
        start = self._used
        self._used += math.prod(shape[1:]) * dtype.itemsize
        return self._memory[:, start : self._used].view(dtype).view(shape)
