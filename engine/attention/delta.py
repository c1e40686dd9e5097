"""Linear attention by the gated delta rule: a state of fixed size replaces all keys and values.

Each head keeps a matrix. A token scales it by its decay, replaces a share (beta) of what its key reads from
it by its value, and reads the result with its query (Yang et al. 2024, arXiv 2412.06464). Before that,
queries, keys and values pass through a convolution over the last few tokens.

A block of the cache holds the state after the last token written in it. So whatever shares, copies or moves
blocks also does so with states, and a full block has the state at its end, from which any request with the
same prefix continues. Tokens are computed one by one: a result never depends on how a row was cut.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.api.config import StateSpec
from engine.attention.state_runs import StateRuns
from engine.kv.store import KVLayer

EPS = 1e-6  # of the norms of queries and keys


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """What a layer's recurrence needs beside its inputs; takes the place of values in `Attend`."""

    sizes: StateSpec
    conv: Tensor = field(repr=False)  # [channels, taps], the newest token's weight last

    def heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys [tokens, key_heads, key_dim] and values from the outputs of the convolution."""
        sizes = self.sizes
        keys = sizes.key_heads * sizes.key_dim
        q, k, v = mixed.split([keys, keys, sizes.heads * sizes.value_dim], 1)
        q, k = (_normed(each.unflatten(1, (sizes.key_heads, -1))) for each in (q, k))
        return q * sizes.key_dim**-0.5, k, v.unflatten(1, (sizes.heads, -1)).contiguous()

    def convolved(self, x: Tensor, layer: KVLayer, runs: StateRuns) -> Tensor:
        """[tokens, channels] in float32, and the last inputs of each block stored."""
        assert layer.inputs is not None
        windows, weights = runs.windows(self.sizes.taps), self.conv.float().unbind(1)
        before = layer.inputs[runs.reads].masked_fill_(runs.fresh[:, None, None], 0)
        wide = before.new_empty(windows.histories.numel() + len(x), x.shape[1])
        wide[windows.histories], wide[windows.read[-1]] = before, x.float()
        out = wide[windows.read[0]] * weights[0]
        for read, weight in zip(windows.read[1:], weights[1:], strict=True):  # in this order for all tokens
            out += wide[read] * weight
        layer.inputs[runs.blocks] = wide[windows.kept]
        return out / (-out).exp_().add_(1)  # silu; see layers/activations.py

    def advance(self, x: Tensor, gates: Tensor, layer: KVLayer, runs: StateRuns) -> Tensor:
        """Read and store states. [tokens, channels], decays and betas [tokens, 2, heads] -> values."""
        assert layer.state is not None
        q, k, v = self.heads(self.convolved(x, layer, runs))
        if x.is_cuda:
            # Imports Triton, which is only installed with a GPU.
            from engine.kernels.triton.linear.delta import advance

            qkv = torch.cat([each.flatten(1) for each in (q, k, v)], 1)
            out = advance(layer.state, qkv, gates, runs.on_device, self.sizes, runs.size)
        else:
            out = self.advance_plainly(layer.state, (q, k, v), gates, runs)
        return out.to(x.dtype)

    def advance_plainly(
        self, kept: Tensor, qkv: tuple[Tensor, Tensor, Tensor], gates: Tensor, runs: StateRuns
    ) -> Tensor:
        """The reference: all runs at once, token by token."""
        each = self.sizes.heads // self.sizes.key_heads
        (q, k), v = (part.repeat_interleave(each, 1) for part in qkv[:2]), qkv[2]
        decay, beta = gates.unbind(1)
        states = kept[runs.reads].masked_fill_(runs.fresh[:, None, None, None], 0)[runs.order]
        out = torch.empty_like(v)
        for at, saved, blocks in runs.offsets():
            state, key = states[: len(at)], k[at].unsqueeze(-1)
            state *= decay[at][..., None, None]
            change = (v[at] - (state * key).sum(-2)) * beta[at].unsqueeze(-1)
            state += key * change.unsqueeze(-2)
            out[at] = (state * q[at].unsqueeze(-1)).sum(-2)
            kept[blocks] = states[saved]
        return out


def _normed(x: Tensor) -> Tensor:
    return x / (x * x).sum(-1, keepdim=True).add_(EPS).sqrt_()
