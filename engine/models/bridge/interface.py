"""Wraps a transformers model in the engine's model interface."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from engine.api.cache_spec import LayerSpec
from engine.api.config import ModelConfig
from engine.attention.base import Attend
from engine.models.bridge.adapters import ADAPTERS, adapt
from engine.models.bridge.products import BridgedProducts

NAME = "minichat"  # the name our attention is registered under; without a mask function, no masks are built

# (attention module, queries [T, heads, dim], keys, values, the model's other arguments) -> [T, heads,
# value_dim]
Visit = Callable[[Any, Tensor, Tensor, Tensor, dict[str, Any]], Tensor]
_visit: ContextVar[Visit] = ContextVar("visit")


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Called by every attention layer, with [1, heads, T, dim] each."""
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return _visit.get()(module, q, k, v, kwargs).contiguous().unsqueeze(0), None  # some models call `view`


def _adapted(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, **kwargs: Any) -> Tensor | None:
    """The same for the families with adapters; None outside of a visit."""
    return _attention(module, query, key, value, **kwargs)[0] if visiting() else None


def implementation_of(theirs: Any) -> str:
    """Return the attention that a model of this config is made with."""
    return "eager" if theirs.model_type in ADAPTERS else NAME


transformers.AttentionInterface.register(NAME, _attention)
transformers.utils.logging.set_verbosity_error()  # its warnings and progress bars would corrupt the screen
transformers.utils.logging.disable_progress_bar()


@contextmanager
def visited_by(visit: Visit) -> Iterator[None]:
    """Within this block, in this thread, every attention layer calls `visit`."""
    token = _visit.set(visit)
    try:
        yield
    finally:
        _visit.reset(token)


def visiting() -> bool:
    return _visit.get(None) is not None


class BridgedModel(nn.Module):
    """Runs packed tokens as one long row; each token's position is its index in its own request."""

    def __init__(self, model: Any, config: ModelConfig) -> None:
        super().__init__()
        self.model = model
        self.maskless = adapt(model, _adapted)
        self.trunk = model.get_decoder()
        self.config = config
        self.sinks: Mapping[int, Tensor] = {}
        self.output_type: type = BaseModelOutputWithPast
        self.products: BridgedProducts | None = None  # set once the model is known to run
        for part in model.modules():
            if isinstance(part, transformers.PreTrainedModel):  # the check reads ids back from the device
                part.warn_if_padding_and_no_attention_mask = lambda *args, **kwargs: None

    @property
    def requantizable(self) -> BridgedProducts | None:
        return self.products

    def set_layers(self, layers: tuple[LayerSpec, ...], sinks: Mapping[int, Tensor], *, hidden: int) -> None:
        """Set what only a probe run can find out."""
        self.config = replace(self.config, layers=layers, hidden=hidden)
        self.sinks = sinks

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """[T] -> [T, hidden] after the last norm."""
        return self.walk(ids, positions, lambda module, q, k, v, kwargs: attend(module.layer_idx, q, k, v))

    def walk(self, ids: Tensor, positions: Tensor, visit: Visit) -> Tensor:
        given = {"input_ids": ids[None], "position_ids": positions[None], "use_cache": False}
        if self.maskless:  # they would build a mask; one of four dimensions is taken as it is
            given["attention_mask"] = ids[None, None, None]
        with visited_by(visit):
            output = self.trunk(**given)
        self.output_type = type(output)  # some heads read fields that only some output types have
        return output.last_hidden_state[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Run what follows the trunk: the head, and the scaling or capping that some models apply."""
        output = self.output_type(last_hidden_state=hidden[None])
        ids = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
        self.trunk.forward = lambda *args, **kwargs: output
        try:
            return self.model(input_ids=ids, use_cache=False).logits[0].float()
        finally:
            del self.trunk.forward
