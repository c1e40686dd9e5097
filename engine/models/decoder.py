"""The decoder of the Llama family: Llama, Mistral, Qwen2, Qwen3, SmolLM and their kin.

Tokens of all requests lie end to end; which ones see each other is `attend`'s business alone.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.attention.base import Attend
from engine.config import DecoderConfig
from engine.models.rope import rope_table, rotate

if TYPE_CHECKING:
    from engine.models.source import Source


def parameter(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)


class Linear(nn.Module):
    """One product. A quantization scheme may put its own in this place."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    @classmethod
    def empty(cls, inputs: int, outputs: int, *, bias: bool, dtype: torch.dtype) -> "Linear":
        return cls(parameter(outputs, inputs, dtype=dtype), parameter(outputs, dtype=dtype) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Norm(nn.Module):
    """Root mean square in float32; scaled only after rounding, as the models were trained."""

    def __init__(self, *shape: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = parameter(*shape, dtype=dtype)
        self.axis = shape[-1:]
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.axis, None, self.eps).mul_(self.weight)


class Layer(nn.Module):
    def __init__(self, index: int, config: DecoderConfig, dtype: torch.dtype) -> None:
        super().__init__()
        spec = config.layers[index]
        self.index = index
        self.heads = (spec.heads, spec.kv_heads)
        self.parts = (sum(self.heads), spec.kv_heads)  # queries and keys lie side by side, and turn together
        self.shape = (-1, sum(self.parts), spec.key_dim)
        self.has_rope = index not in config.unrotated

        width, eps = config.hidden, config.norm_eps
        self.attn_norm = Norm(width, eps=eps, dtype=dtype)
        self.qkv = Linear.empty(width, sum(self.parts) * spec.key_dim, bias=config.qkv_bias, dtype=dtype)
        self.qk_norm = Norm(sum(self.heads), spec.key_dim, eps=eps, dtype=dtype) if config.qk_norm else None
        self.out = Linear.empty(spec.heads * spec.key_dim, width, bias=config.out_bias, dtype=dtype)
        self.mlp_norm = Norm(width, eps=eps, dtype=dtype)
        self.gate_up = Linear.empty(width, 2 * config.mlp, bias=config.mlp_bias, dtype=dtype)
        self.down = Linear.empty(config.mlp, width, bias=config.mlp_bias, dtype=dtype)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> None:
        """Adds the two terms of this layer to x, in place."""
        x += self.attention(self.attn_norm(x), cos, sin, attend)
        x += self.mlp(self.mlp_norm(x))

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        qk, v = self.qkv(x).view(self.shape).split_with_sizes(self.parts, 1)
        if self.qk_norm is not None:
            qk = self.qk_norm(qk)
        if self.has_rope:
            rotate(qk, cos, sin)
        q, k = qk.split_with_sizes(self.heads, 1)
        return self.out(attend(self.index, q, k, v).flatten(1))

    def mlp(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate).mul_(up))


class Decoder(nn.Module):
    """Made empty, on the current default device; a Checkpoint or `random_weights` fills it.

    A hollow one has shapes alone where its layers will be, and its head unless that is the embedding's table:
    a source makes them one after another.
    """

    sinks: Mapping[int, Tensor] = {}
    rope: Tensor
    source: "Source | None" = None  # that its layers can be made from anew

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, *, hollow: bool = False) -> None:
        super().__init__()
        self.config = config
        self.embed = parameter(config.vocab, config.hidden, dtype=dtype)
        with torch.device("meta") if hollow else nullcontext():
            self.layers = nn.ModuleList(Layer(i, config, dtype) for i in range(len(config.layers)))
            own = None if config.tied else parameter(config.vocab, config.hidden, dtype=dtype)
        self.norm = Norm(config.hidden, eps=config.norm_eps, dtype=dtype)
        self.head: nn.Module = Linear(self.embed if own is None else own)
        table = rope_table(config.rope, config.layers[0].key_dim, config.max_context, dtype)
        self.register_buffer("rope", table, persistent=False)

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend, layers: int | None = None) -> Tensor:
        """[T] -> [T, hidden] after the last norm; `layers` leaves early, after so many."""
        x = F.embedding(ids, self.embed)
        cos, sin = F.embedding(positions, self.rope).unsqueeze(1).chunk(2, dim=-1)
        for layer in islice(self.layers, layers):
            layer(x, cos, sin, attend)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, hidden] -> [N, vocab], in float32 whatever the weights are."""
        return self.head(hidden).float()
