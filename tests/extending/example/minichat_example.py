"""An attention backend, a scheduling policy and a weight scheme in a separate package."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.api.cache_spec import LayerSpec
from engine.api.request import Request
from engine.attention.base import Batch, KVLayer


@dataclass(frozen=True, slots=True)
class Row:
    """The part of a step that belongs to one request."""

    tokens: slice  # its new tokens in the batch
    places: Tensor  # [context]: the cache positions of its context, in order
    ages: Tensor  # [tokens, context]: the distance of each key before each query


class SdpaAttention:
    """One call of torch's scaled_dot_product_attention per row."""

    name: ClassVar[str] = "sdpa"

    @staticmethod
    def why_not(device: torch.device, spec: LayerSpec, dtype: torch.dtype) -> str | None:
        if spec.softcap is not None or spec.sinks:
            return "capped scores and attention sinks are not supported"
        return None

    def prepare(self, batch: Batch) -> tuple[Tensor, list[Row]]:
        borders, contexts = pairwise(batch.host_starts.tolist()), batch.host_contexts.tolist()
        size, rows = batch.block_size, []
        for (start, stop), context, table in zip(borders, contexts, batch.tables, strict=True):
            seen = torch.arange(context, device=table.device)
            places = table.long()[seen // size] * size + seen % size
            ages = batch.positions[start:stop, None] - seen
            rows.append(Row(slice(start, stop), places, ages))
        return batch.places, rows

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, layer: KVLayer, prepared: tuple[Tensor, list[Row]]
    ) -> Tensor:
        spec, (new, rows) = layer.spec, prepared
        keys, values = layer.keys.flatten(0, 1), layer.values.flatten(0, 1)
        keys[new], values[new] = k, v  # keys and values are views: this writes to the cache
        out = q.new_empty(*q.shape[:2], spec.value_dim)
        for row in rows:
            seen = row.ages >= 0
            if spec.window is not None:
                seen &= row.ages < spec.window
            out[row.tokens] = F.scaled_dot_product_attention(
                q[row.tokens].transpose(0, 1),
                keys[row.places].transpose(0, 1),
                values[row.places].transpose(0, 1),
                attn_mask=seen,
                scale=spec.scale,
                enable_gqa=True,
            ).transpose(0, 1)
        return out


class Shortest:
    """The shortest prompt first; equal lengths in order of arrival."""

    name: ClassVar[str] = "shortest"

    def rank(self, request: Request) -> tuple[float, ...]:
        return (request.prompt_len, request.id)


class Ternary:
    """Weights of -1, 0 and 1, with one scale per output."""

    name: ClassVar[str] = "ternary"
    kernels: ClassVar[str] = "plain products of the dequantized weight"
    rounds_activations: ClassVar[bool] = False
    graphs: ClassVar[bool] = True

    def why_not(self, device: torch.device, dtype: torch.dtype) -> str | None:
        return None

    def nbytes(self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> int:
        return outputs * (inputs + dtype.itemsize)

    def make(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        return TernaryProduct(weight, bias)


class TernaryProduct(nn.Module):
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        scale = weight.abs().mean(1, keepdim=True)
        self.register_buffer("numbers", (weight / scale).round().clamp(-1, 1).to(torch.int8))
        self.register_buffer("scale", scale[:, 0])
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        out = F.linear(x, self.numbers.to(x.dtype)) * self.scale
        return out if self.bias is None else out + self.bias
