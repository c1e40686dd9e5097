"""Creates layers and the head from weights that are already quantized in the checkpoint."""

from functools import partial

import torch
from torch import Tensor, nn

from engine.models.layers.block import Block
from engine.models.layers.part import Slot
from engine.models.loader import Checkpoint
from engine.models.source import PlainSource, finalize
from engine.quant.base import Scheme
from engine.quant.formats import AsStored, Stored, own, product
from engine.quant.fp4 import Mxfp4Weight
from engine.quant.fp8_linear import ScaledWeight
from engine.quant.linear import Linear
from engine.quant.packing import Packing
from engine.quant.registry import named


class StoredSource:
    """Scheme `none` uses the checkpoint's own format, if it runs here.

    Any other scheme is created from the dequantized weights.
    """

    def __init__(self, plain: PlainSource, checkpoint: Checkpoint, packing: Packing) -> None:
        self._plain, self._checkpoint = plain, checkpoint
        self.device, self.dtype, self.check = plain.device, plain.dtype, plain.check
        self.collective = plain.collective
        self._names = packing.names
        self._no_fp8 = named("fp8").why_not(self.device, self.dtype)
        if packing.method in ("fp4", "mixed"):
            rounds = self._no_fp8 is None and any(each.method == "fp8" for each in packing.choices)
            self._own: Scheme = AsStored(checkpoint.bytes_per_weight, rounds)
        else:
            self._own = own(packing, checkpoint.plain_share)

    def scheme(self, name: str) -> Scheme:
        if name == "none" and self._own.why_not(self.device, self.dtype) is None:
            return self._own
        scheme = self._plain.scheme(name)
        return self._own if name in self._names else scheme

    def layer(self, index: int, scheme: Scheme) -> Block:
        return self._as_stored(index) if scheme is self._own else self._plain.layer(index, scheme)

    def of_head(self, scheme: Scheme) -> Scheme:
        return named("none") if scheme is self._own else self._plain.of_head(scheme)

    def head(self, scheme: Scheme) -> nn.Module:
        """Return the head. Next to layers in the checkpoint's own format it is not quantized either."""
        return self._plain.head(named("none") if scheme is self._own else scheme)

    @torch.no_grad()
    def _as_stored(self, index: int) -> Block:
        """Create a layer in the checkpoint's format; weights that are stored plain stay plain."""
        layer = self._plain.empty_layer(index)
        slots, kept = dict(layer.slots()), dict[str, Stored]()
        for name, weight in self._checkpoint.weights(slots):
            if isinstance(weight, Tensor):
                slots[name].view.copy_(weight)
            elif isinstance(weight, ScaledWeight) and self._no_fp8 is not None:
                slots[name].view.copy_(weight.dequantized())
            else:
                assert not isinstance(weight, Mxfp4Weight), "it is read as plain numbers"
                kept[name] = weight
        for part in layer.parts:
            for attribute, pieces in part.pieces().items():
                if attribute in part._parameters:
                    self._read(slots, kept, [layer.named(piece.name) for piece in pieces])
                    continue
                linear = part.get_submodule(attribute)
                names = [layer.named(f"{piece.name}.weight") for piece in pieces]
                if not isinstance(linear, Linear) or kept.keys().isdisjoint(names):
                    continue
                if not linear.quantizes:
                    self._read(slots, kept, names)
                    continue
                parts = [kept[name] if name in kept else slots[name].view.clone() for name in names]
                make = partial(product, inputs=linear.weight.shape[1], dtype=self.dtype)
                part.set_submodule(attribute, linear.replaced(parts, make))
        finalize(layer, named("none"))
        return layer

    @staticmethod
    def _read(slots: dict[str, Slot], kept: dict[str, Stored], names: list[str]) -> None:
        """Fill weights that are never quantized."""
        for name in kept.keys() & names:
            view = slots[name].view
            view.copy_(kept[name].dequantized()[:, : view.shape[1]])
