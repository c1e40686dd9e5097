"""Small random models, and a plain implementation of attention to run them with."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.api.cache_spec import LayerSpec
from engine.attention.base import Attend, LatentProjections, Recurrence, Values
from engine.attention.delta import DeltaRule
from engine.attention.short_conv import ShortConvolution
from engine.attention.state_space import StateSpace
from engine.models.config_json import read_config
from engine.models.decoder import Decoder
from engine.models.loader import decoder_slots, random_weights

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "dtype": "float32",
}


def write_config(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    return folder


def checkpoint(folder: Path, **changes: Any) -> dict[str, Tensor]:
    """Write a small Llama, and return its tensors for a test to change."""
    model = Decoder(read_config(write_config(folder, **changes)), torch.float32)
    random_weights(model, seed=7)
    tensors = {}
    for name, slot in decoder_slots(model).items():
        tensors[name] = slot.view.expand(slot.view.shape)[(0,) * (slot.view.dim() - len(slot.shape))].clone()
    save_file(tensors, folder / "model.safetensors")
    return tensors


def plain_attend(
    specs: Sequence[LayerSpec] | Mapping[int, LayerSpec],
    rows: Sequence[int] | None = None,
    sinks: Mapping[int, Tensor] | None = None,
) -> Attend:
    """Attend over whole rows of these lengths, concatenated, with every score written out."""

    def attend(index: int, q: Tensor, k: Tensor, v: Values) -> Tensor:
        spec = specs[index]
        if isinstance(v, Recurrence):
            pairs = zip(*(each.split(list(rows or [len(q)])) for each in (q, k)), strict=True)
            return torch.cat([plain_recurrence(x, gates, v) for x, gates in pairs])
        if isinstance(v, LatentProjections):
            assert k.shape[1:] == (spec.kv_heads, spec.key_dim)
            k, v = v.expanded(k)
            dims = {"key_dim": k.shape[2], "value_dim": v.shape[2]}
            spec = replace(spec, kv_heads=spec.heads, **dims)
        assert q.shape[1:] == (spec.heads, spec.key_dim)
        assert k.shape[1:] == (spec.kv_heads, spec.key_dim)
        assert v.shape[1:] == (spec.kv_heads, spec.value_dim)
        group = spec.heads // spec.kv_heads
        row = torch.repeat_interleave(torch.tensor(rows or [len(q)]))
        at = torch.arange(len(q))
        seen = (row[:, None] == row) & (at[:, None] >= at)
        if spec.window is not None:
            seen &= at[:, None] - at < spec.window
        if spec.chunk is not None:
            own = torch.cat([torch.arange(count) for count in rows or [len(q)]]) // spec.chunk
            seen &= own[:, None] == own
        scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(group, 1)) * spec.scale
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        if spec.slopes:
            scores = scores - torch.tensor(spec.slopes)[:, None, None] * (at[:, None] - at)
        scores = scores.masked_fill(~seen, float("-inf"))
        if sinks and index in sinks:
            scores = torch.cat((scores, sinks[index][:, None, None].expand(-1, len(q), 1)), -1)
        weights = scores.softmax(-1)[..., : len(q)].to(v.dtype)
        return torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(group, 1))

    return attend


def plain_recurrence(x: Tensor, gates: Tensor, rule: Recurrence) -> Tensor:
    if isinstance(rule, StateSpace):
        return plain_state_space(x, gates, rule)
    if isinstance(rule, ShortConvolution):
        return plain_convolution(x, rule)
    assert isinstance(rule, DeltaRule)
    return plain_delta_rule(x, gates, rule)


def plain_convolution(x: Tensor, rule: ShortConvolution) -> Tensor:
    """Run a convolution over one row, token by token."""
    padded = torch.cat((x.new_zeros(rule.sizes.taps - 1, x.shape[1]), x)).float()
    bias = 0 if rule.conv_bias is None else rule.conv_bias.float()
    windows = (padded[at : at + rule.sizes.taps] for at in range(len(x)))
    return torch.stack([(window.T * rule.conv.float()).sum(1) + bias for window in windows])


def plain_state_space(x: Tensor, gates: Tensor, space: StateSpace) -> Tensor:
    """Run a state space over one row, token by token and head by head."""
    sizes, taps = space.sizes, space.sizes.taps
    inner, group = sizes.heads * sizes.value_dim, sizes.heads // sizes.key_heads
    keys = sizes.key_heads * sizes.key_dim
    padded = torch.cat((x.new_zeros(taps - 1, x.shape[1]), x)).float()
    state = padded.new_zeros(sizes.heads, sizes.key_dim, sizes.value_dim)
    out = padded.new_zeros(len(x), sizes.heads, sizes.value_dim)
    bias = 0 if space.conv_bias is None else space.conv_bias.float()
    for at in range(len(x)):
        mixed = torch.nn.functional.silu((padded[at : at + taps].T * space.conv.float()).sum(1) + bias)
        for head in range(sizes.heads):
            first = inner + head // group * sizes.key_dim
            b, c = mixed[first : first + sizes.key_dim], mixed[keys + first : keys + first + sizes.key_dim]
            value = mixed[head * sizes.value_dim :][: sizes.value_dim]
            log, step = gates[at, :, head]
            state[head] = log.exp() * state[head] + torch.outer(b, step * value)
            out[at, head] = c @ state[head] + space.skip[head] * value
    return out


def plain_delta_rule(x: Tensor, gates: Tensor, rule: DeltaRule) -> Tensor:
    """Run the gated delta rule over one row, token by token and head by head."""
    sizes, taps = rule.sizes, rule.sizes.taps
    keys, group = sizes.key_heads * sizes.key_dim, sizes.heads // sizes.key_heads
    padded = torch.cat((x.new_zeros(taps - 1, x.shape[1]), x))
    state = x.new_zeros(sizes.heads, sizes.key_dim, sizes.value_dim)
    out = x.new_zeros(len(x), sizes.heads, sizes.value_dim)
    for at in range(len(x)):
        mixed = torch.nn.functional.silu((padded[at : at + taps].T * rule.conv).sum(1))
        for head in range(sizes.heads):
            first = head // group * sizes.key_dim
            q, k = mixed[first : first + sizes.key_dim], mixed[keys + first : keys + first + sizes.key_dim]
            q, k = (each / (each.square().sum() + 1e-6).sqrt() for each in (q, k))
            v = mixed[2 * keys + head * sizes.value_dim :][: sizes.value_dim]
            decay, beta = gates[at, :, head]
            faded = decay * state[head]
            state[head] = faded + torch.outer(k, beta * (v - k @ faded))
            out[at, head] = (q / sizes.key_dim**0.5) @ state[head]
    return out
