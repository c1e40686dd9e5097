"""Creates a decoder's layers and head, when it is loaded and whenever its quantization scheme changes."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from engine.api.config import DecoderConfig
from engine.api.errors import BadInput
from engine.devices import unfit
from engine.later import without_data
from engine.models.decoder import block
from engine.models.layers.block import Block
from engine.models.layers.collective import Collective
from engine.models.layers.norm import Norm
from engine.quant.base import Scheme, make_product
from engine.quant.fp4 import Mxfp4Plain
from engine.quant.linear import Linear
from engine.quant.registry import choose, named, of_head

# Schemes that ranks on GPUs take: products of other libraries have not run on two GPUs.
ON_GPU_RANKS = frozenset({"none", "int8", "int4", "int4-32", "int4-128", "fp8"})


class PlainSource:
    """Creates them from plain weights. At most one layer is unconverted at any time."""

    def __init__(
        self,
        config: DecoderConfig,
        dtype: torch.dtype,
        device: torch.device,
        fill: Callable[[Block | Linear], None],
        check: Callable[[], None],
        collective: Collective | None = None,
    ) -> None:
        """`fill`: fills a layer or the head. `check`: raises if that is no longer possible."""
        self.config, self.dtype, self.device, self.collective = config, dtype, device, collective
        self._fill, self.check = fill, check

    def scheme(self, name: str) -> Scheme:
        scheme = choose(name, self.device, self.dtype)
        if self.collective is not None:
            if self.device.type == "cuda" and scheme.name not in ON_GPU_RANKS:
                others = ", ".join(sorted(ON_GPU_RANKS))
                raise BadInput(
                    f"quantization {name!r}: ranks on GPUs do not support it; use one of {others}",
                    field="scheme",
                    value=name,
                )
            self._check_groups(scheme, self.collective.ranks)
        return scheme

    def _check_groups(self, scheme: Scheme, ranks: int) -> None:
        """Raise if a group of inputs with one scale would cross the border between two ranks."""
        if (group := getattr(scheme, "group", 1)) == 1:
            return
        every = range(len(self.config.layers))
        for index in {index in self.config.dense: index for index in every}.values():  # one of each kind
            whole = without_data(partial(block, self.config, index, self.dtype))
            shapes = {name: slot.shape for name, slot in whole.slots()}
            for name, cut in whole.shards(ranks).items():
                if cut.kind == "columns" and (inputs := shapes[name][1] // ranks) % group:
                    raise BadInput(
                        f"quantization {scheme.name!r}: each of {ranks} ranks has {inputs} inputs of {name}, "
                        f"which is not a multiple of the {group} that share a scale",
                        field="scheme",
                        value=scheme.name,
                    )

    def empty_layer(self, index: int) -> Block:
        ranks = 1 if self.collective is None else self.collective.ranks
        try:
            with self.device:
                return block(self.config, index, self.dtype, ranks, self.collective).eval()
        except RuntimeError as error:
            raise unfit(f"layer {index}", self.device, error) from error

    def layer(self, index: int, scheme: Scheme) -> Block:
        layer = self.empty_layer(index)
        self._fill(layer)
        finalize(layer, scheme)
        return layer

    def of_head(self, scheme: Scheme) -> Scheme:
        head, plain = of_head(scheme), named("none")
        if not self.config.tied:
            return head
        # On a CPU its packed copy is smaller in int8. On a GPU it is the embedding itself.
        return head if head.name == "int8" and self.device.type == "cpu" else plain

    @torch.no_grad()
    def head(self, scheme: Scheme) -> nn.Module:
        head = self._empty_head()
        self._fill(head)
        return make_product(self.of_head(scheme), head.weight, head.bias)

    def _empty_head(self) -> Linear:
        ranks = 1 if self.collective is None else self.collective.ranks
        rows = -(-self.config.vocab // ranks)
        try:
            with self.device:
                return Linear.empty(self.config.hidden, rows, bias=False, dtype=self.dtype)
        except RuntimeError as error:
            raise unfit("the head", self.device, error) from error


class Mxfp4Source(PlainSource):
    """Scheme `none` keeps experts in the 4 bits that the checkpoint has, on a GPU."""

    def scheme(self, name: str) -> Scheme:
        return Mxfp4Plain(name) if name == "none" else super().scheme(name)


@torch.no_grad()
def finalize(module: nn.Module, scheme: Scheme) -> None:
    """Replace Linears by the scheme's products, one by one; on a CPU, also norms by a single kernel."""
    for owner in list(module.modules()):
        for name, child in list(owner.named_children()):
            if isinstance(child, Linear):
                setattr(owner, name, child.finalized(scheme))
            elif isinstance(child, Norm):
                setattr(owner, name, child.finalized())
