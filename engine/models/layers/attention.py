"""Grouped-query attention, with the family's rotary positions, biases and head norms.

The attention backend does the masking.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.api.cache_spec import CacheSpec
from engine.api.config import DecoderConfig
from engine.models.layers.activations import sigmoid
from engine.models.layers.build import Build
from engine.models.layers.part import Part, SourceTensor
from engine.models.layers.sharding import COLUMNS, WHOLE, by_head, segments
from engine.models.layers.step import StepContext
from engine.models.rope import rotate
from engine.quant.linear import parameter

if TYPE_CHECKING:
    from engine.models.layers.gpu import GpuKernels, GpuStep, Residual


class GroupedAttention(Part):
    pdl = one_term = True
    adaptable = ("qkv", "out")
    per_query: ClassVar[int] = 1  # outputs of the product for each number of a query
    gated: ClassVar[bool] = False  # whether a gate multiplies the output

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        whole = config.layers[index]
        self.whole = (whole.heads, whole.kv_heads)  # over all ranks
        self.cache = spec = of_rank(whole, build)
        self.heads = (spec.heads, spec.kv_heads)
        self.parts = (sum(self.heads), spec.kv_heads)  # queries and keys are adjacent: one call rotates both
        self.shape = (-1, sum(self.parts), spec.key_dim)
        self.has_rope = index not in config.unrotated
        self.has_local_rope = config.local_rope is not None and index in config.local
        rope = config.local_rope if self.has_local_rope and config.local_rope else config.rope
        self.interleaved, self.partial = rope.interleaved, int(spec.key_dim * rope.share) < spec.key_dim

        width, dim = config.hidden, spec.key_dim
        self.norm = build.input_norm(width)
        rows = (sum(self.parts) + (self.per_query - 1) * spec.heads) * dim
        self.qkv = build.linear(width, rows, bias=config.qkv_bias)
        self.qk_norm = build.norm(sum(self.heads), dim) if config.qk_norm else None
        self.out = build.linear(spec.heads * dim, width, bias=config.out_bias)
        self.sinks = parameter(spec.heads, dtype=build.dtype) if spec.sinks else None

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        dim, width = self.shape[-1], self.hidden
        (queries, keys), (heads, kv_heads), names = self.heads, self.whole, self.names
        rows = (
            (self.per_query * queries * dim, by_head(heads)),
            (keys * dim, by_head(kv_heads)),
            (keys * dim, by_head(kv_heads)),
        )
        if (joined := names.get("attention.qkv")) is not None:
            qkv: tuple[SourceTensor, ...] = (
                SourceTensor(joined, sum(count for count, _ in rows), segments(*rows)),
            )
        else:
            parts = (names[f"attention.{each}"] for each in "qkv")
            qkv = tuple(SourceTensor(name, *each) for name, each in zip(parts, rows, strict=True))
        found = {
            "norm": (SourceTensor(names["attention.norm"], width, WHOLE),),
            "qkv": qkv,
            "out": (SourceTensor(names["attention.out"], width, COLUMNS),),
        }
        if self.sinks is not None:
            found["sinks"] = (SourceTensor(names["attention.sinks"], queries, by_head(heads)),)
        if self.qk_norm is not None:  # one scale for all query heads, another for all key heads
            found["qk_norm"] = (
                SourceTensor(names["attention.q_norm"], queries, WHOLE, (dim,)),
                SourceTensor(names["attention.k_norm"], keys, WHOLE, (dim,)),
            )
        return found

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        qk, v = self.product("qkv", self.norm(x), step).view(self.shape).split_with_sizes(self.parts, 1)
        if self.qk_norm is not None:
            qk = self.qk_norm(qk)
        self._rotate(qk, step)
        q, k = qk.split_with_sizes(self.heads, 1)
        return self.product("out", step.attend(self.index, q, k, v).flatten(1), step)

    def _rotate(self, qk: Tensor, step: StepContext) -> None:
        if self.has_rope:
            angles = step.local_angles if self.has_local_rope else step.angles
            rotate(qk, *angles, interleaved=self.interleaved)

    def fused(self, x: "Residual", step: "GpuStep", gpu: "GpuKernels") -> "Residual | None":
        if not self._is_plain(gpu):
            return None
        layer, qkv = step.layers[self.index], gpu.product(self.qkv)
        cells, places = step.cells(layer, x.stream.dtype)
        around = (cells, *self._head_norm(gpu), self._table(step), step.positions, places)
        if step.single:
            made = x.norm_gemv(qkv, self.norm, gpu, pdl=step.pdl)
            q = gpu.rope_and_cache(made[None], *around, dtype=x.stream.dtype, pdl=step.pdl)
        else:
            half, rounded = qkv.fuses_qkv_rope(len(x.stream), cells), qkv.rounds(len(x.stream))
            given = x.normed(self.norm, gpu, half=half, rounded=rounded, pdl=step.pdl)
            q = qkv.qkv_rope(given, around, pdl=step.pdl)
        if cells is not layer:
            step.write(cells.keys[:, 0], cells.values[:, 0], layer)
        return x.plus(gpu.product(self.out), step.mix(q, layer).flatten(1), step)

    def _head_norm(self, gpu: "GpuKernels") -> tuple[Tensor | None, float]:
        found = None if self.qk_norm is None else gpu.norm_of(self.qk_norm)
        return (None, 0.0) if found is None else found

    def _table(self, step: "GpuStep") -> Tensor | None:
        return (step.local_rope if self.has_local_rope else step.rope) if self.has_rope else None

    def _is_plain(self, gpu: "GpuKernels") -> bool:
        """Whether the kernels compute its rotation and its norm of queries and keys."""
        plain_rope = not (self.has_rope and (self.interleaved or (self.partial and not self.gated)))
        return plain_rope and (self.qk_norm is None or gpu.norm_of(self.qk_norm) is not None)

    def takes_single(self, gpu: "GpuKernels") -> bool:
        return (
            self._is_plain(gpu)
            and gpu.product(self.qkv).single
            and gpu.product(self.out).single
            and gpu.norm_of(self.norm) is not None
        )


class OwnNormAttention(GroupedAttention):
    """Each head has its own weights for the norm of queries and keys."""

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        found = dict(super().pieces())
        if self.qk_norm is not None:
            found["qk_norm"] = tuple(
                SourceTensor(self.names[f"attention.{name}"], mine, by_head(all_heads))
                for name, mine, all_heads in zip(("q_norm", "k_norm"), self.heads, self.whole, strict=True)
            )
        return found


class WideNormAttention(GroupedAttention):
    """The norm of queries covers all heads together, and so does that of keys."""

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        dim = self.shape[-1]
        self.q_norm, self.k_norm = (build.norm(heads * dim) for heads in self.heads)
        self.collective = build.collective
        # Numbers that the ranks add to each sum of squares. Ranks that share a key head count it twice.
        self.counted = [heads * dim * build.ranks for heads in self.heads]

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        found, dim = dict(super().pieces()), self.shape[-1]
        for name, heads, in_all in zip(("q_norm", "k_norm"), self.heads, self.whole, strict=True):
            cut = by_head(in_all)
            found[name] = (SourceTensor(self.names[f"attention.{name}"], heads * dim, cut),)
        return found

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        widths = [heads * self.shape[-1] for heads in (*self.heads, self.parts[1])]
        q, k, v = self.product("qkv", self.norm(x), step).split_with_sizes(widths, 1)
        qk = torch.cat(self._normed(q, k), 1).view(-1, self.parts[0], self.shape[-1])
        self._rotate(qk, step)
        q, k = qk.split_with_sizes(self.heads, 1)
        mixed = step.attend(self.index, q, k, v.unflatten(1, (self.parts[1], -1)))
        return self.product("out", mixed.flatten(1), step)

    def _normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self.collective is None:
            return self.q_norm(q), self.k_norm(k)
        squares = self.collective.sum(torch.stack([x.float().square().sum(-1) for x in (q, k)], 1))
        norms = zip((q, k), (self.q_norm, self.k_norm), squares.unbind(1), self.counted, strict=True)
        queries, keys = (
            (x.float() * torch.rsqrt(square[:, None] / count + norm.eps)).to(x.dtype) * norm.weight
            for x, norm, square, count in norms
        )
        return queries, keys

    fused, takes_single = Part.fused, Part.takes_single


class GrowingAttention(GroupedAttention):
    """Layers with rotation norm queries and keys after it. In others, queries grow with their position."""

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        settings = config.settings
        self.eps = config.norm_eps if settings["normed"] and self.has_rope else None
        self.floor: int = settings["floor"]
        self.growth: float = 0.0 if self.has_rope else settings["growth"]

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        qk, v = self.product("qkv", self.norm(x), step).view(self.shape).split_with_sizes(self.parts, 1)
        self._rotate(qk, step)
        if self.eps is not None:
            qk = F.rms_norm(qk, qk.shape[-1:], None, self.eps)
        q, k = qk.split_with_sizes(self.heads, 1)
        if self.growth:
            q = grown(q, step.positions + 1, self.floor, self.growth)
        return self.product("out", step.attend(self.index, q, k, v).flatten(1), step)

    fused, takes_single = Part.fused, Part.takes_single


class LengthenedAttention(GroupedAttention):
    """Queries grow with their position, after rotation, if the growth is not zero."""

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        self.floor: int = config.settings["floor"]
        self.growth: float = config.settings["growth"]

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        qk, v = self.product("qkv", self.norm(x), step).view(self.shape).split_with_sizes(self.parts, 1)
        self._rotate(qk, step)
        q, k = qk.split_with_sizes(self.heads, 1)
        if self.growth:
            q = grown(q, step.positions, self.floor, self.growth)
        return self.product("out", step.attend(self.index, q, k, v).flatten(1), step)

    def _is_plain(self, gpu: "GpuKernels") -> bool:
        return not self.growth and super()._is_plain(gpu)


def grown(q: Tensor, positions: Tensor, floor: int, growth: float) -> Tensor:
    scale = (positions // floor).float().log1p() * growth + 1.0
    return (q * scale[:, None, None]).to(q.dtype)


class SlopedAttention(GroupedAttention):
    """Without positions: scores fall with the distance. Queries, keys and values may be ordered by head."""

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        self.by_head: bool = config.settings["by_head"]
        self.limit: float | None = config.settings["clip"]  # of their numbers

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        if not self.by_head:
            return super().pieces()
        qkv = SourceTensor(
            self.names["attention.qkv"], 3 * self.heads[0] * self.shape[-1], by_head(self.whole[0])
        )
        return {**super().pieces(), "qkv": (qkv,)}

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        made = self.product("qkv", self.norm(x), step).view(self.shape)
        if self.limit is not None:
            made.clamp_(-self.limit, self.limit)
        if self.by_head:
            q, k, v = made.unflatten(1, (-1, 3)).unbind(2)
        else:
            q, k, v = made.split_with_sizes((*self.heads, self.parts[1]), 1)
        return self.product("out", step.attend(self.index, q, k, v).flatten(1), step)

    fused, takes_single = Part.fused, Part.takes_single


class GatedAttention(GroupedAttention):
    """Each query head also has a gate for its output, of as many numbers."""

    per_query, gated = 2, True

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        made = self.product("qkv", self.norm(x), step).unflatten(1, (-1, self.shape[-1]))
        queries, k, v = made.split_with_sizes((2 * self.heads[0], self.heads[1], self.parts[1]), 1)
        q, gate = queries.unflatten(1, (-1, 2)).unbind(2)
        qk = torch.cat((q, k), 1)
        if self.qk_norm is not None:
            qk = self.qk_norm(qk)
        self._rotate(qk, step)
        q, k = qk.split_with_sizes(self.heads, 1)
        mixed = step.attend(self.index, q, k, v) * sigmoid(gate)
        return self.product("out", mixed.flatten(1), step)

    def fused(self, x: "Residual", step: "GpuStep", gpu: "GpuKernels") -> "Residual | None":
        if not self._is_plain(gpu):
            return None
        layer, qkv, pdl = step.layers[self.index], gpu.product(self.qkv), step.pdl
        cells, places = step.cells(layer, x.stream.dtype)
        around = (cells, *self._head_norm(gpu), self._table(step), step.positions, places)
        if step.single:
            made = x.norm_gemv(qkv, self.norm, gpu, pdl=pdl).unsqueeze(0)
        else:
            given = x.normed(self.norm, gpu, rounded=qkv.rounds(len(x.stream)), pdl=pdl)
            made = qkv.parts_of(given, pdl=pdl)
        q = gpu.rope_and_cache(made, *around, dtype=x.stream.dtype, per_query=self.per_query, pdl=pdl)
        if cells is not layer:
            step.write(cells.keys[:, 0], cells.values[:, 0], layer)
        gated = gpu.sigmoid_gate(step.mix(q, layer), made, pdl=pdl)
        return x.plus(gpu.product(self.out), gated.flatten(1), step)


def of_rank(spec: CacheSpec, build: Build) -> CacheSpec:
    """Return one rank's share of a cache spec. Ranks beyond the number of key heads share one."""
    ranks, rank = build.ranks, 0 if build.collective is None else build.collective.rank
    spec.check_ranks(ranks)
    own = spec.heads // ranks
    slopes = spec.slopes[rank * own : (rank + 1) * own]
    return replace(spec, heads=own, kv_heads=max(1, spec.kv_heads // ranks), slopes=slopes)
