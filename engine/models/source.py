"""Where a decoder's layers and its head come from, as often as they are asked for: when it is loaded, and
when the scheme in which weights are kept changes."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn

from engine.config import DecoderConfig
from engine.errors import BadInput
from engine.kernels.mirrored import MirroredNorm
from engine.models.decoder import Layer, Linear, Norm
from engine.quant.base import Scheme
from engine.quant.registry import choose, of_head


class Source(Protocol):
    """Makes layers and the head from the exact weights, whatever the present ones are kept as."""

    device: torch.device
    dtype: torch.dtype

    def scheme(self, name: str) -> Scheme:
        """The scheme of that name, if it runs here; `none` is what the checkpoint has."""

    def check(self) -> None:
        """Raises where the exact weights are no longer to be had."""

    def layer(self, index: int, scheme: Scheme) -> Layer: ...

    def of_head(self, scheme: Scheme) -> Scheme:
        """What `head` keeps it in, beside layers of that scheme."""

    def head(self, scheme: Scheme) -> nn.Module:
        """Of a model whose head is not the embedding's table."""


class PlainSource:
    """From weights of plain numbers. No more than one part is there unconverted."""

    def __init__(
        self,
        config: DecoderConfig,
        dtype: torch.dtype,
        device: torch.device,
        fill: Callable[[Layer | Linear], None],
        check: Callable[[], None],
    ) -> None:
        """`fill`: a layer, or the head. `check`: that it still can."""
        self.config, self.dtype, self.device = config, dtype, device
        self._fill, self.check = fill, check

    def scheme(self, name: str) -> Scheme:
        return choose(name, self.device, self.dtype)

    def layer(self, index: int, scheme: Scheme) -> Layer:
        layer = empty_layer(index, self.config, self.dtype, self.device)
        self._fill(layer)
        settle(layer, scheme)
        return layer

    def of_head(self, scheme: Scheme) -> Scheme:
        return of_head(scheme)

    @torch.no_grad()
    def head(self, scheme: Scheme) -> nn.Module:
        head = empty_head(self.config, self.dtype, self.device)
        self._fill(head)
        return self.of_head(scheme).make(head.weight, head.bias)


def empty_layer(index: int, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> Layer:
    try:
        with device:
            return Layer(index, config, dtype).eval()
    except RuntimeError as error:
        raise BadInput(f"layer {index} does not fit on {device}: {error}") from error


def empty_head(config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> Linear:
    try:
        with device:
            return Linear.empty(config.hidden, config.vocab, bias=False, dtype=dtype)
    except RuntimeError as error:
        raise BadInput(f"the head does not fit on {device}: {error}") from error


@torch.no_grad()
def settle(module: nn.Module, scheme: Scheme) -> None:
    """Puts the scheme's products in the place of Linears, one by one; on a CPU, norms in one kernel."""
    for owner in list(module.modules()):
        for name, child in list(owner.named_children()):
            if isinstance(child, Linear):
                setattr(owner, name, scheme.make(child.weight, child.bias))
            elif isinstance(child, Norm) and child.weight.device.type == "cpu":
                setattr(owner, name, MirroredNorm(child.weight, child.eps))
