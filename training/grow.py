"""A larger model that starts from the weights of a smaller one and at first computes the same."""

import torch
from torch import Tensor

from training.model import Decoder

_WRITES = ("o_proj.weight", "down_proj.weight", "embed_tokens.weight")  # they write the residual stream


def grown(model: Decoder, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state of `model` with `weights` inside; unchanged weights if they are of its shape.

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
