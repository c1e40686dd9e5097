"""A decoder's forward on a GPU: the same weights as Decoder.forward, which is its oracle, in fewer launches.

Norms take the sum before them along, rotation writes the cache, and products of a few rows may leave their
sums in parts for whoever reads them next. Where it wins, what stands behind a product is a part of it: the
turn, the activation, the sum with half of a norm. Products with quantized weights leave parts, too, or do the
same (quant/on_gpu.py); what else has taken the place of a Linear is called as it is.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, TypeGuard

from torch import Tensor, nn

from engine.attention.triton_backend import Prepared, Standing, TritonAttention, gpu
from engine.cache.store import KVLayer
from engine.kernels.embed import embed
from engine.kernels.joined import for_joined, joined
from engine.kernels.norm import Normed, norm
from engine.kernels.products import for_narrow, narrow, vector
from engine.kernels.rotary import turn
from engine.kernels.swiglu import swiglu
from engine.kernels.tiled import ROOM, Tiling, for_gated, for_tiled, tiled
from engine.kernels.turned import for_turned, turned
from engine.models.decoder import Decoder, Layer, Linear, Norm
from engine.quant.on_gpu import NibbleProduct, OnGpu, WithVector

EARLY = 32  # tokens up to which kernels start while the one before them ends, whoever does the products


class FusedDecoder:
    """Reads the decoder's modules at every call, so that weights and products may be replaced."""

    def __init__(self, model: Decoder, layers: Sequence[KVLayer], attention: TritonAttention) -> None:
        self.model, self._layers, self._attention = model, layers, attention
        self._overlaps = gpu(model.embed.device).overlaps

    def embed(self, ids: Tensor, slots: Tensor, last_ids: Tensor) -> Tensor:
        """The stream that forward begins with; an id of -1 is what its slot has drawn last."""
        return embed(self.model.embed, ids, slots, last_ids)

    def forward(self, x: Tensor, positions: Tensor, places: Tensor, prepared: Prepared | Standing) -> Tensor:
        """[tokens, hidden] from the embedding (which is overwritten) to after the last norm."""
        model, early = self.model, self.early(len(x))
        if len(x) == 1 and all(is_fused(each) for each in model.modules() if isinstance(each, Layer)):
            return self._alone(x, positions, places, prepared)
        layers = self._in_order()
        h = Normed(norm(x, None, layers[0].attn_norm.weight, layers[0].attn_norm.eps, early=early))
        for layer, after in zip_longest(layers, layers[1:]):
            q = self._turned(layer, h, positions, places, early)
            mixed = self._attention.mix(q, self._layers[layer.index], prepared).flatten(1)
            half = finishes(layer.gate_up, len(x)) or (
                plain(layer.gate_up) and for_gated(len(x), layer.gate_up.weight) is not None
            )
            h = summed(x, layer.out, mixed, layer.mlp_norm, half=half, early=early)
            act = activated(layer.gate_up, h, early=early)
            half = after is not None and (
                finishes(after.qkv, len(x)) or self._turning(after, len(x)) is not None
            )
            h = summed(x, layer.down, act, after.attn_norm if after else model.norm, half=half, early=early)
        return h.values

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, vocab], of the weights' type: what draws from them reads them as they are."""
        parts = product(self.model.head, hidden, early=self.early(len(hidden)))
        return parts[0] if len(parts) == 1 else parts.sum(0).to(hidden.dtype)

    def early(self, tokens: int) -> bool:
        """It pays where the products are ours: another's kernel lets nobody begin before its end."""
        down = self._in_order()[0].down
        in_tiles = plain(down) and (for_tiled(tokens, down.weight) or for_joined(tokens, down.weight))
        return self._overlaps and (bool(in_tiles) or tokens <= EARLY)

    def _in_order(self) -> list[Layer]:
        return [layer for layer in self.model.layers if isinstance(layer, Layer)]

    def _alone(self, x: Tensor, positions: Tensor, places: Tensor, prepared: Prepared | Standing) -> Tensor:
        """The same for a single token: norms, activations and sums are part of the products beside them."""
        early = self.early(1)
        for layer in self.model.layers:
            assert isinstance(layer, Layer)
            before, between = layer.attn_norm, layer.mlp_norm
            qkv = one(layer.qkv, x, scale=before.weight, eps=before.eps, early=early)
            q = turn(qkv.unsqueeze(0), *self._turn_of(layer), positions, places, dtype=x.dtype, early=early)
            mixed = self._attention.mix(q, self._layers[layer.index], prepared)
            x = one(layer.out, mixed.flatten(1), residual=x, early=early)
            act = one(layer.gate_up, x, scale=between.weight, eps=between.eps, gated=True, early=early)
            x = one(layer.down, act, residual=x, early=early)
        return norm(x, None, self.model.norm.weight, self.model.norm.eps, early=early)

    def _turned(self, layer: Layer, h: Normed, positions: Tensor, places: Tensor, early: bool) -> Tensor:
        """The queries; keys and values are in the cache."""
        around = self._turn_of(layer)
        if how := self._turning(layer, len(h.values)):
            return turned(h, layer.qkv.weight, *around, positions, places, how, early=early)
        if finishes(layer.qkv, len(h.values)):
            parts = layer.qkv.row(h, early=early).unsqueeze(0)
        else:
            parts = product(layer.qkv, h.values, early=early)
        return turn(parts, *around, positions, places, dtype=h.values.dtype, early=early)

    def _turning(self, layer: Layer, rows: int) -> Tiling | None:
        """How the product of queries, keys and values turns them itself, if it does."""
        return for_turned(rows, layer.qkv.weight, self._layers[layer.index]) if plain(layer.qkv) else None

    def _turn_of(self, layer: Layer) -> tuple[KVLayer, Tensor | None, float, Tensor | None]:
        norms = layer.qk_norm
        weight, eps = (None, 0.0) if norms is None else (norms.weight, norms.eps)
        return self._layers[layer.index], weight, eps, self.model.rope if layer.has_rope else None


def summed(x: Tensor, linear: nn.Module, given: Tensor, after: Norm, *, half: bool, early: bool) -> Normed:
    """Adds a product to the stream x, in place, and norms that for the next one.

    `half`: that one can finish a norm whose first half is done here.
    """
    if half and plain(linear) and (how := for_joined(len(x), linear.weight)):
        return joined(x, given, linear.weight, after.weight, after.eps, how, early=early)
    if half and finishes(linear, len(x)):
        return linear.joined(x, given, after.weight, after.eps, early=early)
    parts = product(linear, given, early=early)
    return Normed(norm(x, parts, after.weight, after.eps, early=early))


def activated(linear: nn.Module, h: Normed, *, early: bool) -> Tensor:
    """[tokens, width]: the MLP's activation of what the product gives."""
    if finishes(linear, len(h.values)):
        return linear.row(h, gated=True, early=early)
    if plain(linear) and (how := for_gated(len(h.values), linear.weight)):
        return tiled(h, linear.weight, how, gated=True, early=early)[0]
    return swiglu(product(linear, h.values, early=early), h.values.dtype, early=early)


def product(linear: nn.Module, x: Tensor, *, early: bool) -> Tensor:
    """[parts, tokens, outputs]."""
    if not fused(linear):
        return linear(x).unsqueeze(0)
    if isinstance(linear, OnGpu):
        return linear.parts(x, early=early)
    assert isinstance(linear, Linear)
    if len(x) == 1:
        return vector(x, linear.weight, early=early).unsqueeze(0)
    if plain(linear) and (how := for_tiled(len(x), linear.weight)):
        return tiled(Normed(x), linear.weight, how, early=early)
    if cut := for_narrow(len(x), linear.weight):
        return narrow(x, linear.weight, cut, early=early)
    return linear(x).unsqueeze(0)


def one(linear: nn.Module, x: Tensor, **around: Any) -> Tensor:
    """A fused product of one token, with what stands before and behind it."""
    if isinstance(linear, WithVector):
        return linear.vector(x, **around)
    assert isinstance(linear, Linear)
    return vector(x, linear.weight, **around)


def plain(linear: nn.Module) -> TypeGuard[Linear]:
    """A product with weights as they are, on a GPU whose programs have room for the tiles."""
    return type(linear) is Linear and linear.bias is None and gpu(linear.weight.device).room >= ROOM


def finishes(linear: nn.Module, rows: int) -> TypeGuard[NibbleProduct]:
    """A product with weights in four bits that does what stands around it, too."""
    return isinstance(linear, NibbleProduct) and linear.finishes(rows)


def fused(linear: nn.Module) -> bool:
    """Whether our kernels do it, all of it."""
    return linear.fused if isinstance(linear, OnGpu) else type(linear) is Linear and linear.bias is None


def is_fused(layer: Layer) -> bool:
    """Whether `one` does its products."""
    products = (layer.qkv, layer.out, layer.gate_up, layer.down)
    return all(fused(each) and isinstance(each, Linear | WithVector) for each in products)
