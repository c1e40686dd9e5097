"""The kernels of flash-attn, where that package is installed: a back end to be asked for by name."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
from torch import Tensor

from engine.api.config import KvSchemeName, LayerSpec
from engine.attention.base import Batch, KVLayer, why_not_on
from engine.attention.registry import register
from engine.kernels.triton.attention.write import write

WIDEST = 256  # of a head
BLOCK = 256  # tokens: it reads pages of a multiple of these


@dataclass(frozen=True, slots=True)
class FlashMetadata:
    """A step; what its rows of several tokens need besides."""

    batch: Batch
    starts: Tensor | None  # [chunks + 1] int32: where each begins among the tokens behind the single ones
    ends: Tensor | None  # [chunks + 1] int32: the same of the tokens that each attends to
    longest: tuple[int, int]  # chunk, and context of one


@register
class FlashAttention:
    """Two calls: one for rows of a token each, which it cuts along their context, and one for chunks."""

    name: ClassVar[str] = "flash-attn"
    kv_schemes: ClassVar[tuple[KvSchemeName, ...]] = ("none",)
    keeps_first: ClassVar[bool] = False
    block_sizes: ClassVar[tuple[int, ...]] = (BLOCK,)

    @staticmethod
    def why_not(device: torch.device, spec: LayerSpec, dtype: torch.dtype) -> str | None:
        if (problem := why_not_on(device)) is not None:
            return problem
        if dtype not in (torch.float16, torch.bfloat16):
            return f"it serves float16 and bfloat16, not {dtype}"
        if spec.key_dim != spec.value_dim or spec.key_dim > WIDEST:
            dims = f"{spec.key_dim} and {spec.value_dim}"
            return f"it serves keys as wide as values, {WIDEST} at most, not {dims}"
        if spec.sinks or spec.window is not None or spec.softcap is not None:
            return "it is not used for layers with a window, a soft cap or attention sinks"
        return None

    def prepare(self, batch: Batch) -> FlashMetadata:
        if (first := batch.single) == len(batch.host_contexts):
            return FlashMetadata(batch, None, None, (0, 0))
        contexts = batch.contexts[first:]
        ends = torch.nn.functional.pad(contexts.cumsum(0, dtype=torch.int32), (1, 0))
        chunk = int((batch.host_starts[first + 1 :] - batch.host_starts[first:-1]).max())
        longest = chunk, int(batch.host_contexts[first:].max())
        return FlashMetadata(batch, batch.starts[first:] - first, ends, longest)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: KVLayer, metadata: FlashMetadata) -> Tensor:
        batch, spec = metadata.batch, layer.spec
        write(layer, k, v, batch.places, pdl=False)
        single, parts = batch.single, []
        if single:
            out = flash_attn_with_kvcache(
                q[:single].unsqueeze(1),
                layer.keys,
                layer.values,
                cache_seqlens=batch.contexts[:single],
                block_table=batch.tables[:single],
                softmax_scale=spec.scale,
                causal=True,
            )
            parts.append(out.squeeze(1))
        if metadata.starts is not None:
            parts.append(
                flash_attn_varlen_func(
                    q[single:],
                    layer.keys,
                    layer.values,
                    metadata.starts,
                    metadata.ends,
                    *metadata.longest,
                    block_table=batch.tables[single:],
                    softmax_scale=spec.scale,
                    causal=True,
                )
            )
        return parts[0] if len(parts) == 1 else torch.cat(parts)
