"""Mamba-2: a state space with one decay for each head and token (Dao and Gu 2024, arXiv 2405.21060).

A token scales a head's matrix by its decay, adds its key (B) times its value (x), weighed by its step size,
and reads the result with its query (C). Groups of heads share keys and queries.

In float32 on a CPU, tokens are computed one by one, so a result never depends on how a row was cut.
Elsewhere, the tokens of a chunk are computed together: as in attention, each reads those before it in the
chunk, and the state before the chunk. Chunks begin at fixed positions of a text.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.attention.recurrence import Recurrence
from engine.attention.state_runs import DeviceRuns, StateRuns
from engine.kv.store import KVLayer

CHUNK = 64  # tokens, at most; the size of a block if that is less

_Heads = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class StateSpace(Recurrence):
    """Gates are logarithms of decays, and step sizes. Results are in float32."""

    skip: Tensor = field(repr=False, kw_only=True)  # [heads]: how much of a value is added to the result

    def heads(self, mixed: Tensor) -> _Heads:
        """Queries, keys [tokens, groups, key_dim] and values [tokens, heads, value_dim]."""
        sizes = self.sizes
        keys = sizes.key_heads * sizes.key_dim
        v, k, q = mixed.split([sizes.heads * sizes.value_dim, keys, keys], 1)
        q, k = (each.unflatten(1, (sizes.key_heads, -1)) for each in (q, k))
        return q, k, v.unflatten(1, (sizes.heads, -1))

    def advance(self, x: Tensor, gates: Tensor, layer: KVLayer, runs: StateRuns) -> Tensor:
        assert layer.state is not None
        if x.is_cuda:
            return self.advance_on_device(x, gates, layer, runs.on_device)
        heads = self.heads(self.convolved(x, layer, runs))
        one_by_one = x.dtype is torch.float32
        advanced = self.advance_plainly if one_by_one else self.advance_in_chunks
        return advanced(layer.state, heads, gates, runs)

    def advance_on_device(self, x: Tensor, gates: Tensor, layer: KVLayer, runs: DeviceRuns) -> Tensor:
        # Imports Triton, which is only installed with a GPU.
        from engine.kernels.triton.linear.convolve import convolve
        from engine.kernels.triton.linear.state_space import advance

        assert layer.state is not None
        mixed, _ = convolve(layer, x.contiguous().unsqueeze(0), 0, self.conv, self.conv_bias, runs)
        exact = x.dtype is torch.float32
        return advance(layer.state, mixed, gates, self.skip, runs, self.sizes, layer.block_size, exact=exact)

    def advance_plainly(self, kept: Tensor, heads: _Heads, gates: Tensor, runs: StateRuns) -> Tensor:
        """The reference: all runs at once, token by token."""
        each = self.sizes.heads // self.sizes.key_heads
        q, k = (part.repeat_interleave(each, 1).unsqueeze(-1) for part in heads[:2])
        v, decay, given = heads[2], gates[:, 0].exp(), heads[2] * gates[:, 1].unsqueeze(-1)
        states = kept[runs.reads].masked_fill_(runs.fresh[:, None, None, None], 0)[runs.order]
        out = torch.empty_like(v)
        for at, saved, blocks in runs.offsets():
            state = states[: len(at)]
            state *= decay[at][..., None, None]
            state += k[at] * given[at].unsqueeze(-2)
            out[at] = (state * q[at]).sum(-2)
            kept[blocks] = states[saved]
        return out.addcmul_(v, self.skip[:, None])

    def advance_in_chunks(self, kept: Tensor, heads: _Heads, gates: Tensor, runs: StateRuns) -> Tensor:
        """The same, but the tokens of a chunk at once."""
        each, out = self.sizes.heads // self.sizes.key_heads, torch.empty_like(heads[2])
        by_head = [part.repeat_interleave(each, 1).transpose(0, 1) for part in heads[:2]]
        values = (heads[2] * gates[:, 1].unsqueeze(-1)).transpose(0, 1)  # [heads, tokens, ...] each
        logs, mixed = gates[:, 0].T, out.transpose(0, 1)
        numbers, tokens, blocks = runs.of_one()
        before = kept[runs.reads[numbers]].masked_fill_(runs.fresh[numbers][:, None, None, None], 0)
        q, k, v, log = (part[:, tokens].transpose(0, 1) for part in (*by_head, values, logs))
        state = before.mul_(log.exp()[..., None, None]).addcmul_(k.unsqueeze(-1), v.unsqueeze(-2))
        out[tokens] = (state * q.unsqueeze(-1)).sum(-2)
        kept[blocks] = state
        for piece in runs.pieces(min(CHUNK, runs.size)):
            if piece.begins:
                state = kept[runs.reads[piece.run]].clone().masked_fill_(runs.fresh[piece.run], 0)
            q, k, v, log = (part[:, piece.tokens] for part in (*by_head, values, logs))
            mixed[:, piece.tokens], state = _chunk(state, q, k, v, log.cumsum(1))
            if piece.block is not None:
                kept[piece.block] = state
        return out.addcmul_(heads[2], self.skip[:, None])


def _chunk(state: Tensor, q: Tensor, k: Tensor, v: Tensor, log: Tensor) -> tuple[Tensor, Tensor]:
    """[heads, tokens, ...] each, and the logarithms of the decays of all tokens up to each: `log`."""
    between = (log[:, :, None] - log[:, None, :]).tril_()
    seen = (q @ k.transpose(1, 2)).mul_(between.exp_()).tril_()
    out = (seen @ v).add_((q @ state).mul_(log.exp()[..., None]))
    end = log[:, -1:]
    added = (k * (end - log).exp_()[..., None]).transpose(1, 2) @ v
    return out, added.add_(state * end.exp()[..., None])
