"""Latent attention: of each token, one latent for all heads is cached instead of their keys and values."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.api.config import DecoderConfig
from engine.attention.latent import LatentProjections
from engine.models.layers.attention import of_rank
from engine.models.layers.build import Build
from engine.models.layers.part import Part, SourceTensor
from engine.models.layers.sharding import COLUMNS, WHOLE, by_head
from engine.models.layers.step import StepContext
from engine.models.rope import rotate
from engine.quant.linear import parameter

if TYPE_CHECKING:
    from engine.models.layers.gpu import GpuKernels, GpuStep, Residual

EPS = 1e-6  # of the norms of latents, whatever config.json has for the others


class LatentAttention(Part):
    pdl = interleaves = True

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        assert config.latent is not None
        self.sizes = sizes = config.latent
        whole = config.layers[index]
        self.whole_heads = whole.heads  # over all ranks
        self.cache = spec = of_rank(whole, build)
        self.heads, self.interleaved = spec.heads, config.rope.interleaved
        queries, inner = spec.heads * (sizes.unrotated + sizes.rotated), replace(build, eps=EPS)
        self.parts = (sizes.query_rank or queries, sizes.rank, sizes.rotated)

        self.norm = build.input_norm(config.hidden)
        self.down = build.linear(config.hidden, sum(self.parts))
        self.q_norm = inner.norm(sizes.query_rank) if sizes.query_rank else None
        self.q_up = build.linear(sizes.query_rank, queries) if sizes.query_rank else None
        self.latent_norm = inner.norm(sizes.rank)
        self.kv_up = parameter(spec.heads * (sizes.unrotated + sizes.value), sizes.rank, dtype=build.dtype)
        self.out = build.linear(spec.heads * sizes.value, config.hidden)

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        names, heads, (queries, rank, rotated) = self.names, by_head(self.whole_heads), self.parts
        first = ("attention.q_down", WHOLE) if self.q_up is not None else ("attention.q", heads)
        found = {
            "norm": (SourceTensor(names["attention.norm"], self.hidden, WHOLE),),
            "down": (
                SourceTensor(names[first[0]], queries, first[1]),
                SourceTensor(names["attention.kv_down"], rank + rotated, WHOLE),
            ),
            "latent_norm": (SourceTensor(names["attention.latent_norm"], rank, WHOLE),),
            "kv_up": (SourceTensor(names["attention.kv_up"], len(self.kv_up), heads),),
            "out": (SourceTensor(names["attention.out"], self.hidden, COLUMNS),),
        }
        if self.q_up is not None:
            rows = self.heads * (self.sizes.unrotated + rotated)
            found["q_norm"] = (SourceTensor(names["attention.q_norm"], queries, WHOLE),)
            found["q_up"] = (SourceTensor(names["attention.q_up"], rows, heads),)
        return found

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        q, latent, rotated = self.down(self.norm(x)).split_with_sizes(self.parts, 1)
        if self.q_norm is not None and self.q_up is not None:
            q = self.q_up(self.q_norm(q))
        q = q.unflatten(1, (self.heads, -1))
        cell = torch.cat((self.latent_norm(latent), rotated), 1).unsqueeze(1)
        for part in (q[..., self.sizes.unrotated :], cell[..., self.sizes.rank :]):
            rotate(part, *step.angles, interleaved=self.interleaved)
        out: Tensor = self.out(step.attend(self.index, q, cell, self._projections).flatten(1))
        return out

    @property
    def _projections(self) -> LatentProjections:
        return LatentProjections(self.kv_up.unflatten(0, (self.heads, -1)), self.sizes.unrotated)

    def fused(self, x: "Residual", step: "GpuStep", gpu: "GpuKernels") -> "Residual | None":
        latent_norm, layer, up = gpu.norm_of(self.latent_norm), step.layers[self.index], self._projections
        if latent_norm is None:
            return None
        if step.expands(layer, up):  # long prompts gain less by launches than by keys and values
            x.add(x.scaled(self.forward(x.total(), step)))
            return x
        down, pdl = gpu.product(self.down), step.pdl
        if step.single:
            made = x.norm_gemv(down, self.norm, gpu, pdl=pdl).unsqueeze(0)
        else:
            rounded = down.rounds(len(x.stream))
            made = down.parts_of(x.normed(self.norm, gpu, rounded=rounded, pdl=pdl), pdl=pdl)
        queries, latents = made.split_with_sizes((self.parts[0], sum(self.parts[1:])), 2)
        q = self._queries(queries, x.stream.dtype, gpu, pdl=pdl).unflatten(2, (self.heads, -1))
        around = layer, *latent_norm, step.rope, step.positions, step.cells(layer, x.stream.dtype)[1]
        absorbed = gpu.absorb(q, latents, up.of_keys, *around, interleaved=self.interleaved, pdl=pdl)
        values = gpu.by_head(step.mix(absorbed, layer), up.of_values.transpose(1, 2), pdl=pdl)
        return x.plus(gpu.product(self.out), values.flatten(1), step)

    def _queries(self, made: Tensor, dtype: torch.dtype, gpu: "GpuKernels", *, pdl: bool) -> Tensor:
        """Return the parts of the queries, given those of the first product."""
        if self.q_norm is None or self.q_up is None:
            return made
        latent = made[0] if len(made) == 1 else made.sum(0).to(dtype)
        return gpu.product(self.q_up).parts(self.q_norm(latent), pdl=pdl)

    def takes_single(self, gpu: "GpuKernels") -> bool:
        norms = gpu.norm_of(self.norm), gpu.norm_of(self.latent_norm)
        return None not in norms and gpu.product(self.down).single and gpu.product(self.out).single
