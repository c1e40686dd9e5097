"""The kernels' results in plain torch, with the kernels' own signatures."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.api.cache_spec import StateSpec
from engine.kv.store import KVLayer
from engine.models.rope import rotate
from engine.sampling import sampler
from engine.sampling.rows import COLUMNS, RowsView


def added(parts: Tensor, dtype: torch.dtype) -> Tensor:
    return parts.float().sum(0).to(dtype)


def norm(x: Tensor, parts: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    if parts is not None:
        x += added(parts, x.dtype)
    return F.rms_norm(x, x.shape[1:], None, eps) * weight


def swiglu(parts: Tensor, dtype: torch.dtype, *, gelu: bool = False) -> Tensor:
    gate, up = added(parts, dtype).chunk(2, dim=-1)
    return (F.gelu(gate, approximate="tanh") if gelu else F.silu(gate)) * up


def turn(
    parts: Tensor,
    layer: KVLayer,
    weight: Tensor | None,
    eps: float,
    rope: Tensor | None,
    positions: Tensor,
    places: Tensor,
    *,
    dtype: torch.dtype,
) -> Tensor:
    spec = layer.spec
    heads = (spec.heads, spec.kv_heads)
    qk, v = added(parts, dtype).view(len(positions), -1, spec.key_dim).split((sum(heads), spec.kv_heads), 1)
    if weight is not None:
        wide = qk.to(weight.dtype)  # one in float32 is applied before the result is rounded
        qk = (F.rms_norm(wide, qk.shape[2:], None, eps) * weight).to(dtype)
    if rope is not None:
        qk = qk.contiguous()
        rotate(qk, *rope[positions].unsqueeze(1).chunk(2, dim=-1))
    q, k = qk.split(heads, dim=1)
    kept = places >= 0
    layer.keys.flatten(0, 1)[places[kept]] = k[kept]
    layer.values.flatten(0, 1)[places[kept]] = v[kept]
    return q


def embed(table: Tensor, ids: Tensor, slots: Tensor, last_ids: Tensor) -> Tensor:
    return table[torch.where(ids < 0, last_ids[slots], ids)]


def sample(
    out: Tensor, last_ids: Tensor, logits: Tensor, columns: Tensor, slots: Tensor, *, filtered: bool
) -> None:
    host = np.ascontiguousarray(columns.cpu().numpy().T)
    sampled = sampler.sample(logits.float(), RowsView(host, columns))
    last_ids[slots] = sampled.ids
    out.copy_(sampled.ids.masked_fill(sampled.bad, -1))


def settings(rows: list[dict[str, float]], vocab: int) -> Tensor:
    """Return columns as the sampler takes them, with every missing setting off."""
    off = dict.fromkeys(COLUMNS, 0.0) | {"top_k": vocab, "top_p": 1.0, "repetition": 1.0}
    numbers = [[(off | row)[name] for name in COLUMNS] for row in rows]
    return torch.tensor(numbers, dtype=torch.float64).T.contiguous()


def linear_inputs(
    parts: Tensor, rates: Tensor, sizes: StateSpec, dtype: torch.dtype, *, interleaved: bool
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """The inputs of a convolution, the output gates, and betas and rates, from a layer's two products."""
    mixed, gates = added(parts, dtype), rates.sum(0)
    if not interleaved:
        qkv, gate = mixed.split([sizes.channels, sizes.heads * sizes.value_dim], 1)
        beta, rate = gates.chunk(2, 1)
        return qkv, gate.unflatten(1, (sizes.heads, -1)), (beta, rate)
    each = sizes.heads // sizes.key_heads
    widths = [sizes.key_dim, sizes.key_dim, each * sizes.value_dim, each * sizes.value_dim]
    by_head = mixed.unflatten(1, (sizes.key_heads, -1)).split(widths, 2)
    beta, rate = gates.unflatten(1, (sizes.key_heads, 2, each)).unbind(2)
    qkv = torch.cat([part.flatten(1) for part in by_head[:3]], 1)
    return qkv, by_head[3].reshape(len(mixed), sizes.heads, -1), (beta.flatten(1), rate.flatten(1))


def state_gates(beta: Tensor, rate: Tensor, decay: Tensor, bias: Tensor) -> Tensor:
    speed = decay.exp() * F.softplus(rate + bias)
    return torch.stack(((-speed).exp(), beta.sigmoid()), 1)


def norm_gate(values: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Heads [tokens, heads, dim], normed and multiplied by the silu of their gates."""
    scale = torch.rsqrt(values.float().square().mean(-1, keepdim=True) + eps)
    normed = (values.float() * scale).to(values.dtype) * weight
    return (normed * F.silu(gate.float())).to(values.dtype)
