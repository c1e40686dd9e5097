"""The bytes that decodes have to read, which limit their speed."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from torch import nn

from engine.api.cache_spec import CacheSpec
from engine.execution.traffic import weights_read
from engine.models.base import LanguageModel
from engine.models.layers.moe import MoE


def bytes_of_step(model: LanguageModel, rows: int, context: int) -> int:
    """Weights, of experts those that rows with random choices need, and the cache of `rows` contexts."""
    return round(_weights(model, rows) + rows * _cache(model, context))


def bytes_of_run(model: LanguageModel, prompts: Sequence[int], replies: Sequence[int]) -> int:
    """Of the decodes of requests with such lengths, all from the same step on, each until its reply ends.

    The first token of a reply comes with its prompt, which reads less than it computes.
    """
    steps = Counter(sum(each > step for each in replies) for step in range(1, max(replies)))
    weights = sum(times * _weights(model, rows) for rows, times in steps.items())
    read = (range(prompt + 1, prompt + reply) for prompt, reply in zip(prompts, replies, strict=True))
    contexts = Counter(chain.from_iterable(read))
    return round(weights + sum(rows * _cache(model, context) for context, rows in contexts.items()))


def _weights(model: LanguageModel, rows: int) -> float:
    spared = 0.0
    for part in model.modules():
        if isinstance(part, MoE):
            missed = (1 - part.spec.chosen / part.spec.count) ** rows  # the share of experts that none chose
            spared += missed * (_nbytes(part.gate_up) + _nbytes(part.down))
    return weights_read(model) - spared


def _cache(model: LanguageModel, context: int) -> int:
    itemsize = next(iter(model.parameters())).dtype.itemsize
    return sum(_cached(spec, context, itemsize) for spec in model.config.layers)


def _nbytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in chain(module.parameters(), module.buffers()))


def _cached(spec: CacheSpec, context: int, itemsize: int) -> int:
    """Keys and values are read, a state in float32 is read and written."""
    numbers = spec.kv_heads * (spec.key_dim + (0 if spec.latent else spec.value_dim))
    state = 0 if spec.state is None else 2 * 4 * spec.state.numbers
    return numbers * itemsize * min(context, spec.reach or context) + state
