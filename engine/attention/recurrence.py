"""Layers that keep a state of fixed size instead of all keys and values.

Each head keeps a matrix, which every token changes and reads (attention/delta.py, attention/state_space.py).
Before that, a token's numbers pass through a convolution over the last few tokens. A layer may also have
only that (attention/short_conv.py).

A block of the cache holds the state after the last token written in it. So whatever shares, copies or moves
blocks also does so with states, and a full block has the state at its end, from which any request with the
same prefix continues.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from torch import Tensor

from engine.api.cache_spec import StateSpec
from engine.attention.state_runs import StateRuns
from engine.kv.store import KVLayer


@dataclass(frozen=True, slots=True)
class Recurrence(ABC):
    """What a layer's recurrence needs beside its inputs; takes the place of values in `Attend`."""

    sizes: StateSpec
    conv: Tensor = field(repr=False)  # [channels, taps], the newest token's weight last
    conv_bias: Tensor | None = field(default=None, repr=False)  # [channels]

    @abstractmethod
    def advance(self, x: Tensor, gates: Tensor, layer: KVLayer, runs: StateRuns) -> Tensor:
        """Read and store states. [tokens, channels] and [tokens, 2, heads] -> [tokens, heads, value_dim]."""

    def convolved(self, x: Tensor, layer: KVLayer, runs: StateRuns) -> Tensor:
        """Like `summed`, with an activation."""
        out = self.summed(x, layer, runs)
        return out / (-out).exp_().add_(1)  # silu; see layers/activations.py

    def summed(self, x: Tensor, layer: KVLayer, runs: StateRuns) -> Tensor:
        """The convolution, [tokens, channels] in float32, and the last inputs of each block stored."""
        assert layer.inputs is not None
        windows, weights = runs.windows(self.sizes.taps), self.conv.float().unbind(1)
        before = layer.inputs[runs.reads].masked_fill_(runs.fresh[:, None, None], 0)
        wide = before.new_empty(windows.histories.numel() + len(x), x.shape[1])
        wide[windows.histories], wide[windows.read[-1]] = before, x.float()
        out = wide[windows.read[0]] * weights[0]
        for read, weight in zip(windows.read[1:], weights[1:], strict=True):  # in this order for all tokens
            out += wide[read] * weight
        if self.conv_bias is not None:
            out += self.conv_bias.float()
        layer.inputs[runs.blocks] = wide[windows.kept]
        return out
