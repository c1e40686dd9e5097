"""Where a decoder's layers and its head come from, as often as they are asked for: when it is loaded, and
when the scheme in which weights are kept changes."""

from collections.abc import Callable

import torch
from torch import nn

from engine.api.config import DecoderConfig
from engine.api.errors import BadInput
from engine.models.decoder import block
from engine.models.layers.block import Block
from engine.models.layers.norm import Norm
from engine.quant.base import Scheme
from engine.quant.linear import Linear
from engine.quant.registry import choose, of_head


class PlainSource:
    """From weights of plain numbers. No more than one part is there unconverted."""

    def __init__(
        self,
        config: DecoderConfig,
        dtype: torch.dtype,
        device: torch.device,
        fill: Callable[[Block | Linear], None],
        check: Callable[[], None],
    ) -> None:
        """`fill`: a layer, or the head. `check`: that it still can."""
        self.config, self.dtype, self.device = config, dtype, device
        self._fill, self.check = fill, check

    def scheme(self, name: str) -> Scheme:
        return choose(name, self.device, self.dtype)

    def layer(self, index: int, scheme: Scheme) -> Block:
        layer = empty_layer(index, self.config, self.dtype, self.device)
        self._fill(layer)
        finalize(layer, scheme)
        return layer

    def of_head(self, scheme: Scheme) -> Scheme:
        return of_head(scheme)

    @torch.no_grad()
    def head(self, scheme: Scheme) -> nn.Module:
        head = empty_head(self.config, self.dtype, self.device)
        self._fill(head)
        return self.of_head(scheme).make(head.weight, head.bias)


def empty_layer(index: int, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> Block:
    try:
        with device:
            return block(config, index, dtype).eval()
    except RuntimeError as error:
        raise BadInput(f"layer {index} does not fit on {device}: {error}") from error


def empty_head(config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> Linear:
    try:
        with device:
            return Linear.empty(config.hidden, config.vocab, bias=False, dtype=dtype)
    except RuntimeError as error:
        raise BadInput(f"the head does not fit on {device}: {error}") from error


@torch.no_grad()
def finalize(module: nn.Module, scheme: Scheme) -> None:
    """Puts the scheme's products in the place of Linears, one by one; on a CPU, norms in one kernel."""
    for owner in list(module.modules()):
        for name, child in list(owner.named_children()):
            if isinstance(child, Linear):
                setattr(owner, name, child.finalized(scheme))
            elif isinstance(child, Norm):
                setattr(owner, name, child.finalized())
