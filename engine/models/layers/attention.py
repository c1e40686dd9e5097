"""Grouped-query attention, with the family's rotary positions, biases and head norms.

The attention backend does the masking.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from engine.api.config import CacheSpec, DecoderConfig
from engine.api.errors import BadInput
from engine.models.layers.build import Build
from engine.models.layers.norm import Norm
from engine.models.layers.part import Part, SourceTensor
from engine.models.layers.sharding import COLUMNS, WHOLE, by_head
from engine.models.layers.step import StepContext
from engine.models.rope import rotate

if TYPE_CHECKING:
    from engine.models.layers.gpu import GpuKernels, GpuStep, Residual


class GroupedAttention(Part):
    pdl = True

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        whole = config.layers[index]
        self.whole = (whole.heads, whole.kv_heads)  # over all ranks
        self.cache = spec = of_rank(whole, build.ranks)
        self.heads = (spec.heads, spec.kv_heads)
        self.parts = (sum(self.heads), spec.kv_heads)  # queries and keys are adjacent: one call rotates both
        self.shape = (-1, sum(self.parts), spec.key_dim)
        self.has_rope = index not in config.unrotated

        width, dim = config.hidden, spec.key_dim
        self.norm = build.norm(width)
        self.qkv = build.linear(width, sum(self.parts) * dim, bias=config.qkv_bias)
        self.qk_norm = (
            Norm(sum(self.heads), dim, eps=build.eps, dtype=build.dtype) if config.qk_norm else None
        )
        self.out = build.linear(spec.heads * dim, width, bias=config.out_bias)

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        dim, width = self.shape[-1], self.hidden
        (queries, keys), (heads, kv_heads), names = self.heads, self.whole, self.names
        found = {
            "norm": (SourceTensor(names["attention.norm"], width, WHOLE),),
            "qkv": (
                SourceTensor(names["attention.q"], queries * dim, by_head(heads)),
                SourceTensor(names["attention.k"], keys * dim, by_head(kv_heads)),
                SourceTensor(names["attention.v"], keys * dim, by_head(kv_heads)),
            ),
            "out": (SourceTensor(names["attention.out"], width, COLUMNS),),
        }
        if self.qk_norm is not None:  # one scale for all query heads, another for all key heads
            found["qk_norm"] = (
                SourceTensor(names["attention.q_norm"], queries, WHOLE, (dim,)),
                SourceTensor(names["attention.k_norm"], keys, WHOLE, (dim,)),
            )
        return found

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        qk, v = self.qkv(self.norm(x)).view(self.shape).split_with_sizes(self.parts, 1)
        if self.qk_norm is not None:
            qk = self.qk_norm(qk)
        if self.has_rope:
            rotate(qk, *step.angles)
        q, k = qk.split_with_sizes(self.heads, 1)
        out: Tensor = self.out(step.attend(self.index, q, k, v).flatten(1))
        return out

    def fused(self, x: "Residual", step: "GpuStep", gpu: "GpuKernels") -> "Residual":
        layer, qkv = step.layers[self.index], gpu.product(self.qkv)
        weight, eps = (None, 0.0) if self.qk_norm is None else (self.qk_norm.weight, self.qk_norm.eps)
        rope = step.rope if self.has_rope else None
        around = (layer, weight, eps, rope, step.positions, step.places)
        if step.single:
            made = x.norm_gemv(qkv, self.norm, gpu, pdl=step.pdl)
            q = gpu.rope_and_cache(made.unsqueeze(0), *around, dtype=x.stream.dtype, pdl=step.pdl)
        else:
            half = qkv.fuses_qkv_rope(len(x.stream), layer)
            q = qkv.qkv_rope(x.normed(self.norm, gpu, half=half, pdl=step.pdl), around, pdl=step.pdl)
        return x.plus(gpu.product(self.out), step.mix(q, layer).flatten(1), step)

    def takes_single(self, gpu: "GpuKernels") -> bool:
        return (
            gpu.product(self.qkv).single
            and gpu.product(self.out).single
            and gpu.norm_of(self.norm) is not None
        )


def of_rank(spec: CacheSpec, ranks: int) -> CacheSpec:
    """Return one rank's share of a cache spec. Ranks beyond the number of key heads share one."""
    heads, kv_heads = spec.heads, spec.kv_heads
    if heads % ranks or (kv_heads % ranks and ranks % kv_heads):
        raise BadInput(f"{heads} query heads and {kv_heads} KV heads cannot be split over {ranks} ranks")
    return replace(spec, heads=heads // ranks, kv_heads=max(1, kv_heads // ranks))
