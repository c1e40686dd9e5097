"""Linear attention by the gated delta rule: a state of fixed size replaces all keys and values.

Each head keeps a matrix. A token scales it by its decay, replaces a share (beta) of what its key reads from
it by its value, and reads the result with its query (Yang et al. 2024, arXiv 2412.06464). Before that,
queries, keys and values pass through a convolution over the last few tokens.

A block of the cache holds the state after the last token written in it. So whatever shares, copies or moves
blocks also does so with states, and a full block has the state at its end, from which any request with the
same prefix continues. Tokens are computed one by one: a result never depends on how a row was cut.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from engine.api.config import StateSpec
from engine.kv.store import KVLayer

EPS = 1e-6  # of the norms of queries and keys


@dataclass(slots=True)
class _Run:
    """Successive tokens of one request: a row, or those that drafts were unrolled into."""

    first: int  # index of its first token in the step
    position: int  # of that token
    length: int
    table: np.ndarray

    def block(self, offset: int, size: int) -> int:
        """The block of a token, by its offset in the run."""
        return int(self.table[(self.position + offset) // size])


@dataclass(frozen=True, slots=True)
class _Saved:
    """States to store after a token of each of some runs."""

    runs: Tensor  # in the order of StateRuns.reads
    blocks: Tensor


class StateRuns:
    """Where a step's tokens find the states before them, and which states are stored. Made once per step."""

    def __init__(
        self, starts: np.ndarray, ends: np.ndarray, tables: np.ndarray, size: int, device: torch.device
    ) -> None:
        """`starts`: where each row's tokens begin; `ends`: the position after its last one."""
        runs = list[_Run]()
        for row, (first, stop, end) in enumerate(zip(starts[:-1], starts[1:], ends, strict=True)):
            length, before = int(stop - first), runs[-1] if runs else None
            position = int(end) - length
            if before is not None and _continues(before, position, tables[row], size):
                before.length += length
            else:
                runs.append(_Run(int(first), position, length, tables[row]))
        counts = np.array([run.length for run in runs])
        self.tokens = int(counts.sum())
        self._device = device
        # Histories of the convolution are put before each run's tokens, so these are shifted by so many.
        self._rank = self._sent(np.repeat(np.arange(1, len(runs) + 1), counts))
        self._firsts = self._sent([run.first for run in runs])
        order = sorted(range(len(runs)), key=lambda at: -runs[at].length)
        runs = [runs[at] for at in order]
        self._order = self._sent(order)  # longest runs first, so that those not at their end come first
        self.reads = self._sent([run.block(-1, size) if run.position else 0 for run in runs])
        self.fresh = self._sent([run.position == 0 for run in runs])
        self.at: list[Tensor] = []  # of each offset in the runs, the tokens there
        self.saved: list[_Saved | None] = []  # after each offset
        ended, blocks = list[int](), list[int]()
        for offset in range(runs[0].length if runs else 0):
            runs = runs[: next((n for n, run in enumerate(runs) if run.length <= offset), len(runs))]
            self.at.append(self._sent([run.first + offset for run in runs]))
            kept = [
                n
                for n, run in enumerate(runs)
                if offset + 1 == run.length or (run.position + offset + 1) % size == 0
            ]
            there = [runs[n].block(offset, size) for n in kept]
            self.saved.append(_Saved(self._sent(kept), self._sent(there)) if kept else None)
            ended += [runs[n].first + offset for n in kept]
            blocks += there
        self.ended, self.blocks = self._sent(ended), self._sent(blocks)  # where any state is stored

    def _sent(self, numbers: object) -> Tensor:
        return torch.as_tensor(numbers, device=self._device)

    def histories(self, taps: int) -> tuple[Tensor, Tensor]:
        """The places of the tokens, and of the runs' histories [runs, taps - 1], when each comes before."""
        places = torch.arange(self.tokens, device=self._device) + (taps - 1) * self._rank
        firsts = self._firsts + (taps - 1) * torch.arange(len(self._firsts), device=self._device)
        return places, (firsts[:, None] + torch.arange(taps - 1, device=self._device))[self._order]


def _continues(before: _Run, position: int, table: np.ndarray, size: int) -> bool:
    """Whether a row at `position` reads the state that the run before it stores last."""
    if position == 0 or before.position + before.length != position:
        return False
    return before.block(before.length - 1, size) == int(table[(position - 1) // size])


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """What a layer's recurrence needs beside its inputs; takes the place of values in `Attend`."""

    sizes: StateSpec
    conv: Tensor = field(repr=False)  # [channels, taps], the newest token's weight last

    def heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys [..., heads, key_dim] and values from the convolution's outputs [..., channels]."""
        sizes = self.sizes
        keys = sizes.key_heads * sizes.key_dim
        q, k, v = mixed.split([keys, keys, sizes.heads * sizes.value_dim], -1)
        q, k = (
            _normed(each.unflatten(-1, (sizes.key_heads, -1))).repeat_interleave(
                sizes.heads // sizes.key_heads, -2
            )
            for each in (q, k)
        )
        return q * sizes.key_dim**-0.5, k, v.unflatten(-1, (sizes.heads, -1))

    def convolved(self, x: Tensor, layer: KVLayer, runs: StateRuns) -> Tensor:
        """[tokens, channels] in float32, and the last inputs of each block stored."""
        assert layer.inputs is not None
        taps, weights = self.sizes.taps, self.conv.float()
        places, histories = runs.histories(taps)
        before = layer.inputs[runs.reads]
        before[runs.fresh] = 0
        wide = before.new_empty(histories.numel() + len(x), x.shape[1])
        wide[histories], wide[places] = before, x.float()
        out = wide[places - (taps - 1)] * weights[:, 0]
        for tap in range(1, taps):  # one by one, so that a sum does not depend on other tokens
            out += wide[places - (taps - 1 - tap)] * weights[:, tap]
        last = places[runs.ended, None] - torch.arange(taps - 2, -1, -1, device=x.device)
        layer.inputs[runs.blocks] = wide[last]
        return out / (-out).exp_().add_(1)  # silu; see layers/activations.py

    def advance(self, x: Tensor, gates: Tensor, layer: KVLayer, runs: StateRuns) -> Tensor:
        """Read and store states. [tokens, channels], decays and betas [tokens, 2, heads] -> values."""
        assert layer.state is not None
        q, k, v = self.heads(self.convolved(x, layer, runs))
        decay, beta = gates.float().unbind(1)
        states = layer.state[runs.reads]
        states[runs.fresh] = 0
        out = torch.empty_like(v)
        for at, saved in zip(runs.at, runs.saved, strict=True):
            state, key = states[: len(at)], k[at].unsqueeze(-1)
            state *= decay[at][..., None, None]
            change = (v[at] - (state * key).sum(-2)) * beta[at].unsqueeze(-1)
            state += key * change.unsqueeze(-2)
            out[at] = (state * q[at].unsqueeze(-1)).sum(-2)
            if saved is not None:
                layer.state[saved.blocks] = states[saved.runs]
        return out.to(x.dtype)


def _normed(x: Tensor) -> Tensor:
    return x / (x * x).sum(-1, keepdim=True).add_(EPS).sqrt_()
