"""Families of transformers that do not call its attention interface: one of their methods is replaced.

Outside of a visit the original one runs, which is what the probe compares with.
"""

import types
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from transformers.models.falcon.modeling_falcon import FalconAttention, apply_rotary_pos_emb

# (attention module, queries, keys, values [1, heads, T, dim], the spec's arguments) -> [1, T, heads, dim];
# None outside of a visit
Attention = Callable[..., Tensor | None]


def _scored(attention: Attention, module: Any) -> None:
    """GPT-J, CodeGen and GPT-Neo: `_attn` is the attention. That of the last has no scale, but windows."""
    original, settings = module._attn, {"scaling": 1.0}
    if (scale := getattr(module, "scale_attn", None)) is not None:
        settings["scaling"] = 1 / float(scale)
    else:
        module.layer_idx = module.layer_id
        if module.attention_type == "local":
            settings["sliding_window"] = module.config.window_size

    def attn(
        self: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None
    ) -> tuple[Tensor, Any]:
        # Rotated queries and keys may be in float32.
        out = attention(self, query.to(value.dtype), key.to(value.dtype), value, **settings)
        if out is None:
            given: tuple[Tensor, Any] = original(query, key, value, attention_mask)
            return given
        return out.transpose(1, 2), None

    module._attn = types.MethodType(attn, module)


def _falcon(attention: Attention, module: Any) -> None:
    """Falcon without ALiBi: its forward between the two products, where only rotation precedes attention."""
    original = module.forward

    def forward(
        self: Any, hidden_states: Tensor, alibi: Tensor | None, *given: Any, **named: Any
    ) -> tuple[Tensor, Any]:
        if alibi is not None:
            raise ValueError("ALiBi, which adds a bias for each distance to attention, is not supported")
        parts = _falcon_heads(self, self.query_key_value(hidden_states))
        query, key, value = (each.transpose(1, 2) for each in parts)
        query, key = apply_rotary_pos_emb(query, key, *named["position_embeddings"])
        out = attention(self, query, key, value, scaling=self.head_dim**-0.5)
        if out is None:
            given_out: tuple[Tensor, Any] = original(hidden_states, alibi, *given, **named)
            return given_out
        return self.dense(out.flatten(2)), None

    module.forward = types.MethodType(forward, module)


def _falcon_heads(module: Any, fused: Tensor) -> Sequence[Tensor]:
    """Like their `_split_heads`, without lists as indices: the host waits while one is copied to a GPU."""
    new: bool = module.new_decoder_architecture
    if not new and not module.multi_query:
        plain: Sequence[Tensor] = module._split_heads(fused)
        return plain
    queries = module.num_heads // module.num_kv_heads if new else module.num_heads
    groups = fused.unflatten(2, (-1, queries + 2, module.head_dim))
    query, key, value = groups[..., :-2, :], groups[..., -2:-1, :], groups[..., -1:, :]
    if new:
        key, value = key.expand_as(query), value.expand_as(query)
    return [each.flatten(2, 3) for each in (query, key, value)]


def _is_scored(module: nn.Module) -> bool:
    return hasattr(module, "_attn")


def _is_falcon(module: nn.Module) -> bool:
    return isinstance(module, FalconAttention)


ADAPTERS: dict[str, tuple[Callable[[nn.Module], bool], Callable[[Attention, Any], None]]] = {
    "gptj": (_is_scored, _scored),
    "codegen": (_is_scored, _scored),
    "gpt_neo": (_is_scored, _scored),
    "falcon": (_is_falcon, _falcon),
}


def adapt(model: Any, attention: Attention) -> bool:
    """Let the attention modules of a model call ours, if its family has an adapter.

    Return whether its masks are never read. ALiBi is made from them, before it is refused.
    """
    if (adapter := ADAPTERS.get(model.config.model_type)) is None:
        return False
    fits, replace = adapter
    for module in list(model.modules()):
        if fits(module):
            replace(attention, module)
    return not getattr(model.config, "alibi", False)
