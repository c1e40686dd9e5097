"""The decoder in training: Llama's architecture and Hugging Face's names, with exits and layer dropout."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from training.recipe import Shape

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, q, k, v -> mixed values


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], self.weight.float(), self.eps).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, x: Tensor, layer: int, turn: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = (
            p(x).view(rows, length, -1, self.head_dim).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = attend(layer, rotate(q, turn), rotate(k, turn), v)
        return self.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1))


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)

    def forward(
        self, x: Tensor, layer: int, turn: tuple[Tensor, Tensor], attend: Attend, keep: Tensor | None
    ) -> Tensor:
        y = x + self.self_attn(self.input_layernorm(x), layer, turn, attend)
        y = y + self.mlp(self.post_attention_layernorm(y))
        return y if keep is None else torch.where(keep[layer][:, None, None], y, x)


class Trunk(nn.Module):
    def __init__(self, shape: Shape, vocab: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.eps)


class Decoder(nn.Module):
    """A decoder whose state dict is the checkpoint: `model.layers.0.self_attn.q_proj.weight` and so on, head tied."""

    def __init__(self, shape: Shape, vocab: int) -> None:
        super().__init__()
        self.shape = shape
        self.model = Trunk(shape, vocab)
        self.apply(self._init)

    def _init(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.5 / math.sqrt(module.in_features))
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def hidden(
        self, tokens: Tensor, positions: Tensor, attend: Attend, keep: Tensor | None = None
    ) -> dict[int, Tensor]:
        """The stream after each exit and after the last layer, by number of layers run."""
        x = self.model.embed_tokens(tokens)
        turn = angles(positions, self.shape)
        found = {}
        for i, layer in enumerate(self.model.layers):
            x = layer(x, i, turn, attend, keep)
            if i + 1 in self.shape.exits or i + 1 == self.shape.layers:
                found[i + 1] = x
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """Every exit shares the last norm and the tied head."""
        return F.linear(self.model.norm(hidden), self.model.embed_tokens.weight)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        return self.logits(self.hidden(tokens, positions, attend)[self.shape.layers])


def angles(positions: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosine and sine for `positions` [rows or 1, length], shaped for heads."""
    half = torch.arange(0, shape.head_dim, 2, device=positions.device, dtype=torch.float32)
    turn = positions[:, None, :, None].float() / shape.rope_theta ** (half / shape.head_dim)
    return torch.cat((turn, turn), -1).cos(), torch.cat((turn, turn), -1).sin()


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    left, right = x.float().chunk(2, -1)
    return (x.float() * turn[0] + torch.cat((-right, left), -1) * turn[1]).to(x.dtype)


def flex_attend(mask: BlockMask) -> Attend:
    """Attention within documents on a GPU: blocks between documents are skipped."""
    return lambda layer, q, k, v: flex_attention(q, k, v, block_mask=mask, enable_gqa=True)


def dense_attend(mask: Tensor) -> Attend:
    """The same with a plain mask of [rows, 1, length, length]."""
    return lambda layer, q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def documents(tokens: Tensor, start: int, first: Tensor) -> Tensor:
    """The document number of each token in a packed row. `first`: where a text begins without the start token."""
    return ((tokens == start) | first).cumsum(-1, dtype=torch.int32)


_WRITES = ("o_proj.weight", "down_proj.weight", "embed_tokens.weight")  # they write the residual stream


def grown(model: Decoder, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a larger model's state that computes what the smaller one's `weights` do, or `weights` if they fit.

    New dimensions of the stream and new layers start with zeros, new heads and neurons with random inputs and
    zeros as outputs. So the exits compute what they did, and all new weights still get a gradient.
    """
    fresh = model.state_dict()
    if all(fresh[name].shape == old.shape for name, old in weights.items()) and len(fresh) == len(weights):
        return weights
    width = weights["model.norm.weight"].numel()
    narrower = (width / model.shape.hidden) ** 0.5  # the added zeros make the stream's mean square smaller
    made = {}
    for name, new in fresh.items():
        made[name] = whole = torch.zeros_like(new) if name.endswith(_WRITES) else new.clone()
        old = weights.get(name)
        if old is None:
            continue
        if old.ndim == 1:
            whole[: old.numel()] = old * narrower
        elif "q_proj" in name:
            whole[_heads(model, old.size(0)), : old.size(1)] = old
        elif "o_proj" in name:
            whole[: old.size(0), _heads(model, old.size(1))] = old
        else:
            whole[: old.size(0), : old.size(1)] = old
    return made


def _heads(model: Decoder, outputs: int) -> Tensor:
    """The places of the old query heads: each stays in the group of its key-value head."""
    shape = model.shape
    old, new = outputs // shape.head_dim // shape.kv_heads, shape.heads // shape.kv_heads
    places = torch.arange(shape.heads * shape.head_dim).view(shape.kv_heads, new, shape.head_dim)
    return places[:, :old].flatten()
