"""Attention summed up by block as kernels do it, in torch."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from engine.attention.base import Attend, KVLayer
from engine.attention.observers import Observers
from engine.execution.block_scores import received
from engine.models.base import LanguageModel
from engine.models.decoder import Decoder


def observers_in(fields: Mapping[str, Tensor]) -> Observers | None:
    """Those of a captured step."""
    if (listed := fields.get("observers")) is None:
        return None
    return Observers(listed, fields["received"])


def observing(
    attend: Attend, observers: Observers | None, layers: Sequence[KVLayer], tables: Tensor
) -> Attend:
    """`attend`, which also fills the observers' totals if there are any. Blocks have 16 tokens."""
    if observers is None:
        return attend
    listed, totals = observers
    totals.zero_()

    def observed(layer: int, q: Tensor, *given: Tensor) -> Tensor:
        out = attend(layer, q, *given)
        for nth, (token, row, count, _) in enumerate(listed[1 : 1 + int(listed[0, 0])].tolist()):
            totals[nth, :count] += received(q[token], layers[layer], tables[row, :count])
        return out

    return observed


def leave_for_heads(model: LanguageModel, hidden: Tensor, states: Tensor | None = None) -> Tensor:
    """Leave what heads that draft read of a step, as graphs do, and nowhere else. `states`: of decodes."""
    if states is not None:
        states[: len(hidden)].copy_(hidden)
    if isinstance(model, Decoder):
        model.tap_buffers = {layer: read for layer, read in model.taps.items() if read is not None}
        model.taps = dict.fromkeys(model.taps)
    return hidden
