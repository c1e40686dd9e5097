"""The memory that is the cache's, and what fits into it under each scheme."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.api.config import KV_SCHEMES, KvSchemeName, LayerSpec
from engine.api.errors import BadInput
from engine.api.snapshot import SchemeView
from engine.execution.protocol import Fit
from engine.kv.store import KVStore
from engine.kv.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBudget:
    """Measured once, when the engine starts; whoever changes the cache's form asks it again."""

    specs: tuple[LayerSpec, ...]
    sinks: Mapping[int, Tensor]
    block_size: int
    dtype: torch.dtype
    device: torch.device
    longest: int  # tokens that the model holds for one request
    blocks: int | None  # so many, whatever that takes; None: as many as fit
    host_blocks: int | None
    nbytes: int
    host_nbytes: int
    most: int | None  # more blocks than that would never be used
    window: Window | None = None  # what leaves it holds no block, so a request may be longer than the cache

    def fit(self, scheme: KvSchemeName) -> Fit:
        """Raises where not even one block fits."""
        each = KVStore.block_bytes(self.specs, self.block_size, self.dtype, scheme)
        blocks = self.blocks or self.nbytes // each
        if blocks < 1:
            raise BadInput(
                f"no memory is left on {self.device} for the KV cache: one block takes {each} bytes"
            )
        if self.blocks is None and self.most is not None:
            blocks = min(blocks, self.most)
        host_blocks = self.host_blocks
        if host_blocks is None:
            host_blocks = min(blocks, self.host_nbytes // each)
        if self.window is None:
            return Fit(blocks, host_blocks, min(self.longest, blocks * self.block_size))
        if blocks < (least := min(self.window.peak, -(-self.longest // self.block_size))):
            raise BadInput(
                f"a window of {self.window.size} tokens needs {least} blocks of {self.block_size} for one "
                f"request, and the cache has {blocks}: lower kv_window, or give it more blocks"
            )
        return Fit(blocks, host_blocks, self.longest)

    def views(self, problem_of: Callable[[KvSchemeName], str | None]) -> tuple[SchemeView, ...]:
        """Every form of the cache; `problem_of` says of one whether anything but room is in its way."""
        return tuple(self._view(scheme, problem_of(scheme)) for scheme in KV_SCHEMES)

    def _view(self, scheme: KvSchemeName, problem: str | None) -> SchemeView:
        nbytes = KVStore.block_bytes(self.specs, 1, self.dtype, scheme)
        try:
            return SchemeView(scheme, problem or "", nbytes, self.fit(scheme).blocks)
        except BadInput as error:
            return SchemeView(scheme, problem or str(error), nbytes)

    def widest(self, schemes: tuple[KvSchemeName, ...]) -> int:
        """The most blocks that one request may ever hold, whichever of the schemes comes."""
        return max(-(-self.fit(scheme).context // self.block_size) for scheme in schemes)

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
        )
