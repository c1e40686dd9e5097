"""A decoder's forward on a GPU: the same weights as Decoder.forward, which is its oracle, in fewer launches.

Norms take the sum before them along, rotation writes the cache, and products of a few rows may leave their
sums in parts for whoever reads them next. Products with quantized weights do the same (quant/on_gpu.py); what
else has taken the place of a Linear is called as it is.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from engine.attention.triton_backend import Prepared, Standing, TritonAttention, gpu
from engine.cache.store import KVLayer
from engine.kernels.embed import embed
from engine.kernels.norm import norm
from engine.kernels.products import for_narrow, narrow, vector
from engine.kernels.rotary import turn
from engine.kernels.swiglu import swiglu
from engine.kernels.tiled import ROOM, Tiling, for_tiled, tiled
from engine.models.decoder import Decoder, Layer, Linear
from engine.quant.on_gpu import OnGpu

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
        parts = None
        for layer in model.layers:
            assert isinstance(layer, Layer)
            h = norm(x, parts, layer.attn_norm.weight, layer.attn_norm.eps, early=early)
            q = self._turned(layer, product(layer.qkv, h, early=early), positions, places, early)
            mixed = self._attention.mix(q, self._layers[layer.index], prepared)
            parts = product(layer.out, mixed.flatten(1), early=early)
            h = norm(x, parts, layer.mlp_norm.weight, layer.mlp_norm.eps, early=early)
            parts = product(layer.down, activated(layer.gate_up, h, early=early), early=early)
        return norm(x, parts, model.norm.weight, model.norm.eps, early=early)

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, vocab], of the weights' type: what draws from them reads them as they are."""
        parts = product(self.model.head, hidden, early=self.early(len(hidden)))
        return parts[0] if len(parts) == 1 else parts.sum(0).to(hidden.dtype)

    def early(self, tokens: int) -> bool:
        """It pays where the products are ours: another's kernel lets nobody begin before its end."""
        first = self.model.layers[0]
        assert isinstance(first, Layer)
        ours = type(first.down) is Linear and tiling(tokens, first.down.weight) is not None
        return self._overlaps and (ours or tokens <= EARLY)

    def _alone(self, x: Tensor, positions: Tensor, places: Tensor, prepared: Prepared | Standing) -> Tensor:
        """The same for a single token: norms, activations and sums are part of the products beside them."""
        early = self.early(1)
        for layer in self.model.layers:
            assert isinstance(layer, Layer)
            before, between = layer.attn_norm, layer.mlp_norm
            qkv = one(layer.qkv, x, scale=before.weight, eps=before.eps, early=early)
            q = self._turned(layer, qkv.unsqueeze(0), positions, places, early)
            mixed = self._attention.mix(q, self._layers[layer.index], prepared)
            x = one(layer.out, mixed.flatten(1), residual=x, early=early)
            act = one(layer.gate_up, x, scale=between.weight, eps=between.eps, gated=True, early=early)
            x = one(layer.down, act, residual=x, early=early)
        return norm(x, None, self.model.norm.weight, self.model.norm.eps, early=early)

    def _turned(self, layer: Layer, parts: Tensor, positions: Tensor, places: Tensor, early: bool) -> Tensor:
        norms = layer.qk_norm
        weight, eps = (None, 0.0) if norms is None else (norms.weight, norms.eps)
        rope = self.model.rope if layer.has_rope else None
        kv = self._layers[layer.index]
        return turn(
            parts, kv, weight, eps, rope, positions, places, dtype=self.model.embed.dtype, early=early
        )


def product(linear: nn.Module, x: Tensor, *, early: bool) -> Tensor:
    """[parts, tokens, outputs]."""
    if not fused(linear):
        return linear(x).unsqueeze(0)
    if isinstance(linear, OnGpu):
        return linear.parts(x, early=early)
    assert isinstance(linear, Linear)
    if len(x) == 1:
        return vector(x, linear.weight, early=early).unsqueeze(0)
    if how := tiling(len(x), linear.weight):
        return tiled(x, linear.weight, how, early=early)
    if cut := for_narrow(len(x), linear.weight):
        return narrow(x, linear.weight, cut, early=early)
    return linear(x).unsqueeze(0)


def activated(linear: nn.Module, x: Tensor, *, early: bool) -> Tensor:
    """[tokens, width]: the MLP's activation of what the product gives."""
    if isinstance(linear, Linear) and fused(linear) and (how := tiling(len(x), linear.weight, gated=True)):
        return tiled(x, linear.weight, how, gated=True, early=early)[0]
    return swiglu(product(linear, x, early=early), x.dtype, early=early)


def tiling(rows: int, weight: Tensor, *, gated: bool = False) -> Tiling | None:
    """None: the tiles do not fit into this GPU's programs, or another kernel is ahead."""
    return for_tiled(rows, weight, gated=gated) if gpu(weight.device).room >= ROOM else None


def one(linear: nn.Module, x: Tensor, **around: Any) -> Tensor:
    """A fused product of one token, with what stands before and behind it."""
    if isinstance(linear, OnGpu):
        return linear.vector(x, **around)
    assert isinstance(linear, Linear)
    return vector(x, linear.weight, **around)


def fused(linear: nn.Module) -> bool:
    """Whether our kernels do it, all of it."""
    return linear.fused if isinstance(linear, OnGpu) else type(linear) is Linear and linear.bias is None


def is_fused(layer: Layer) -> bool:
    return all(map(fused, (layer.qkv, layer.out, layer.gate_up, layer.down)))
