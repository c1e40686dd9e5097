"""The kernels of flash-attn, if that package is installed. Used only when selected by name."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
from torch import Tensor

from engine.api.cache_spec import KvSchemeName, LayerSpec
from engine.attention.base import Batch, KVLayer, why_not_on
from engine.attention.registry import register
from engine.kernels.triton.attention.write import write

WIDEST = 256  # head dimension
BLOCK = 256  # tokens: its page size must be a multiple of this


@dataclass(frozen=True, slots=True)
class FlashMetadata:
    """A step, and what its rows with several tokens need."""

    batch: Batch
    starts: Tensor | None  # [chunks + 1] int32: offsets of the chunks among the tokens after the single ones
    ends: Tensor | None  # [chunks + 1] int32: offsets of the chunks' contexts
    longest: tuple[int, int]  # longest chunk, and longest context of a chunk


@register
class FlashAttention:
    """Two calls: one for rows of a single token, which splits their contexts, and one for chunks."""

    name: ClassVar[str] = "flash-attn"
    kv_schemes: ClassVar[tuple[KvSchemeName, ...]] = ("none",)
    keeps_first: ClassVar[bool] = False
    chunks: ClassVar[bool] = False
    slopes: ClassVar[bool] = False
    block_sizes: ClassVar[tuple[int, ...]] = (BLOCK,)

    @staticmethod
    def why_not(device: torch.device, spec: LayerSpec, dtype: torch.dtype) -> str | None:
        if (problem := why_not_on(device)) is not None:
            return problem
        if dtype not in (torch.float16, torch.bfloat16):
            return f"it supports float16 and bfloat16, not {dtype}"
        if spec.key_dim != spec.value_dim or spec.key_dim > WIDEST:
            dims = f"{spec.key_dim} and {spec.value_dim}"
            return f"it supports equal key and value dimensions up to {WIDEST}, not {dims}"
        if spec.sinks or spec.window is not None or spec.softcap is not None:
            return "it does not support layers with a window, a soft cap or attention sinks"
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
