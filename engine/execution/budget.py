"""The cache's memory, and what fits into it under each scheme."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.api.cache_spec import KV_SCHEMES, KvSchemeName, LayerSpec
from engine.api.errors import BadInput
from engine.api.snapshot import SchemeView
from engine.devices import give_back, lacking
from engine.execution.protocol import Fit
from engine.kv.eviction import TokenBudget
from engine.kv.groups import BlockGroups
from engine.kv.pinned import blocks_ahead
from engine.kv.store import KVStore
from engine.kv.window import Window

_ALIGNED = 4  # numbers, 16 bytes: so the rows of every group begin where Triton's kernels load most at once


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBudget:
    """Measured once at start; used again when the cache's scheme changes."""

    specs: tuple[LayerSpec, ...]
    sinks: Mapping[int, Tensor]
    block_size: int
    dtype: torch.dtype
    device: torch.device
    longest: int  # the model's maximum tokens per request
    blocks: int | None  # a fixed number, or None for as many as fit
    host_blocks: int | None
    nbytes: int  # for all blocks, with `drafted` of each
    host_nbytes: int
    host_beyond: bool  # whether host memory may hold more blocks than the device
    most: int | None  # more blocks would never be used
    groups: BlockGroups  # of layers
    window: Window | None = None  # of all layers, by configuration
    budget: TokenBudget | None = None  # blocks beyond it are released, so a request may outgrow the cache
    drafted: int = 0  # bytes that a draft model's cache takes of each block, under any scheme

    @property
    def block_specs(self) -> tuple[LayerSpec, ...]:
        """The layers whose tokens a block holds."""
        return (
            tuple(self.specs[index] for index in self.groups.layers[0]) if self.groups.layers else self.specs
        )

    def fit(self, scheme: KvSchemeName) -> Fit:
        """What fits under this scheme. Raises if not even one block does."""
        each = KVStore.block_bytes(self.block_specs, self.block_size, self.dtype, scheme)
        blocks = self.blocks or self.nbytes // (each + self.drafted)
        if blocks < 1:
            one = f"one block takes {each + self.drafted} bytes"
            raise BadInput(f"not enough memory on {self.device} for the KV cache: {one}")
        if self.blocks is None and self.most is not None:
            blocks = min(blocks, self.most)
        host_blocks = self.host_blocks
        if host_blocks is None:
            usual = min(blocks, blocks_ahead(self.host_nbytes, each))
            host_blocks = self.host_nbytes // each if self.host_beyond else usual
        if (bound := self.budget or self.window) is None:
            return Fit(blocks, host_blocks, min(self.longest, self.groups.tokens_in(blocks)))
        whole = self.groups.blocks_for(self.longest)
        least = self.groups.most(whole) if self.budget is None else min(self.budget.peak, whole)
        if blocks < least:
            raise BadInput(
                f"a {bound.what} needs {least} blocks of {self.block_size} for one "
                f"request, but the cache has {blocks}; lower {bound.option} or add blocks"
            )
        return Fit(blocks, host_blocks, self.longest)

    def with_more(self, more: int) -> "CacheBudget":
        return replace(self, nbytes=self.nbytes + more)

    def blocks_with(self, more: int, scheme: KvSchemeName) -> int | None:
        """How many blocks fit with `more` bytes, or fewer; None if their number is fixed."""
        if self.blocks is not None:
            return None
        try:
            return self.with_more(more).fit(scheme).blocks
        except BadInput:  # not even one block fits
            return 0

    def views(self, problem_of: Callable[[KvSchemeName], str | None]) -> tuple[SchemeView, ...]:
        """Views of all schemes. `problem_of` returns why a scheme is not supported, aside from memory."""
        return tuple(self._view(scheme, problem_of(scheme)) for scheme in KV_SCHEMES)

    def _view(self, scheme: KvSchemeName, problem: str | None) -> SchemeView:
        nbytes = KVStore.block_bytes(self.specs, self.block_size, self.dtype, scheme) // self.block_size
        try:
            return SchemeView(scheme, problem or "", nbytes, self.fit(scheme).blocks)
        except BadInput as error:
            return SchemeView(scheme, problem or str(error), nbytes)

    def widest(self, schemes: tuple[KvSchemeName, ...]) -> int:
        """The maximum blocks of a request under any of the schemes, those that left a window included."""
        widest = max(-(-self.fit(scheme).context // self.block_size) for scheme in schemes)
        if (groups := self.groups.count) == 1:
            return widest
        return -(-widest // _ALIGNED) * _ALIGNED * groups

    def rebuild(self, store: KVStore, scheme: KvSchemeName) -> None:
        """Rebuild a cache in another scheme, empty. On failure, rebuild it in the old one."""
        before = store.scheme
        store.clear()  # freed first, because there is rarely memory for both
        give_back(self.device)  # torch would keep it for caches of the same size
        try:
            store.become(self.store(scheme))
        except (RuntimeError, MemoryError) as error:
            store.become(self.store(before))
            problem = (isinstance(error, RuntimeError) and lacking(error)) or error
            raise BadInput(f"no room for a cache of {scheme}: {problem}; it stays {before}") from None

    def store(self, scheme: KvSchemeName) -> KVStore:
        blocks, host_blocks, _ = self.fit(scheme)
        return KVStore(
            self.specs,
            blocks=blocks,
            block_size=self.block_size,
            host_blocks=host_blocks,
            dtype=self.dtype,
            device=self.device,
            sinks=self.sinks,
            scheme=scheme,
            groups=self.groups.layers,
        )
