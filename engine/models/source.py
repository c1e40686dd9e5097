"""Creates a decoder's layers and head, when it is loaded and whenever its quantization scheme changes."""

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
    """Creates them from plain weights. At most one layer is unconverted at any time."""

    def __init__(
        self,
        config: DecoderConfig,
        dtype: torch.dtype,
        device: torch.device,
        fill: Callable[[Block | Linear], None],
        check: Callable[[], None],
    ) -> None:
        """`fill`: fills a layer or the head. `check`: raises if that is no longer possible."""
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
    """Replace Linears by the scheme's products, one by one; on a CPU, also norms by a single kernel."""
    for owner in list(module.modules()):
        for name, child in list(owner.named_children()):
            if isinstance(child, Linear):
                setattr(owner, name, child.finalized(scheme))
            elif isinstance(child, Norm):
                setattr(owner, name, child.finalized())
