"""The bytes that a step of decodes has to read, which limit its speed."""

from itertools import chain

from torch import nn

from engine.api.cache_spec import CacheSpec
from engine.execution.traffic import weights_read
from engine.models.base import LanguageModel
from engine.models.layers.moe import MoE


def bytes_of_step(model: LanguageModel, rows: int, context: int) -> int:
    """Weights, of experts those that rows with random choices need, and the cache of `rows` contexts."""
    spared = 0.0
    for part in model.modules():
        if isinstance(part, MoE):
            missed = (1 - part.spec.chosen / part.spec.count) ** rows  # the share of experts that none chose
            spared += missed * (_nbytes(part.gate_up) + _nbytes(part.down))
    itemsize = next(iter(model.parameters())).dtype.itemsize
    cache = sum(_cached(spec, context, itemsize) for spec in model.config.layers)
    return round(weights_read(model) - spared + rows * cache)


def _nbytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in chain(module.parameters(), module.buffers()))


def _cached(spec: CacheSpec, context: int, itemsize: int) -> int:
    """Keys and values are read, a state in float32 is read and written."""
    numbers = spec.kv_heads * (spec.key_dim + (0 if spec.latent else spec.value_dim))
    state = 0 if spec.state is None else 2 * 4 * spec.state.numbers
    return numbers * itemsize * min(context, spec.reach or context) + state
