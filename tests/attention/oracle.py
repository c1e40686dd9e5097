"""A plain implementation of attention: float64, one query at a time, every mask explicit."""

import math

import torch
from torch import Tensor

from engine.attention.base import Batch, KVLayer


def attend(q: Tensor, k: Tensor, v: Tensor, layer: KVLayer, batch: Batch) -> Tensor:
    """Return what every backend's `attend` must return, up to rounding. Writes the cache as they do."""
    spec, size = layer.spec, layer.keys.shape[1]
    for token, place in enumerate(batch.places.tolist()):
        layer.keys[place // size, place % size] = k[token]
        layer.values[place // size, place % size] = v[token]

    out = torch.zeros(len(q), spec.heads, spec.value_dim, dtype=torch.float64)
    starts, contexts, tables = batch.starts.tolist(), batch.contexts.tolist(), batch.tables.tolist()
    for row, context in enumerate(contexts):
        cells = [(tables[row][at // size], at % size) for at in range(context)]
        keys = torch.stack([layer.keys[cell] for cell in cells]).double()
        values = torch.stack([layer.values[cell] for cell in cells]).double()
        for token in range(starts[row], starts[row + 1]):
            position = context - (starts[row + 1] - token)
            oldest = 0 if spec.window is None else max(0, position - spec.window + 1)
            if spec.chunk is not None:
                oldest = position // spec.chunk * spec.chunk
            seen = [*range(min(spec.kept, oldest)), *range(oldest, position + 1)]
            for head in range(spec.heads):
                shared = head * spec.kv_heads // spec.heads
                scores = keys[seen, shared] @ q[token, head].double() * spec.scale
                if spec.softcap is not None:
                    scores = torch.tanh(scores / spec.softcap) * spec.softcap
                if spec.slopes:
                    scores = scores - spec.slopes[head] * (position - torch.tensor(seen))
                sink = math.exp(float(layer.sinks[head])) if layer.sinks is not None else 0.0
                weights = scores.exp() / (scores.exp().sum() + sink)
                out[token, head] = weights @ values[seen, shared]
    return out
