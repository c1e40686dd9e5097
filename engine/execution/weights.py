"""Owns the weights: their scheme, the size under other schemes, and what that leaves for the cache."""

from collections.abc import Callable
from itertools import chain

import torch
from torch import nn

from engine.api.errors import BadInput
from engine.api.snapshot import SchemeView
from engine.models.base import LanguageModel
from engine.models.decoder import Decoder, Linear, block
from engine.quant.base import Scheme
from engine.quant.conversion import Conversion, Replace, replace_part
from engine.quant.registry import named, names, why_not

BlocksWith = Callable[[int], int | None]  # bytes more -> how many blocks fit; None if the number is fixed

_FOREIGN = "this model runs through transformers, and its weights cannot be changed"


class Weights:
    """The weights of a model. They change only between steps."""

    def __init__(self, model: LanguageModel, scheme: Scheme, *, share: float) -> None:
        """`share`: the fraction of memory freed or taken by the weights that the cache gets or gives up."""
        self._model, self._share = model, share
        self.scheme = scheme
        self._known = {scheme.name: scheme}
        self._views: dict[str, tuple[SchemeView, ...]] = {}  # by the cache's scheme

    def schemes(self, kv_scheme: str, blocks_with: BlocksWith) -> tuple[SchemeView, ...]:
        """All schemes, and why some are not available. Computed once for each scheme of the cache."""
        if kv_scheme not in self._views:
            self._views[kv_scheme] = tuple(self._view(name, blocks_with) for name in names())
        return self._views[kv_scheme]

    def begin(self, name: str, replace: Replace) -> Conversion:
        """Start a conversion. If it is not possible, raises and changes nothing."""
        if not isinstance(self._model, Decoder) or self._model.source is None:
            raise BadInput(f"quantization {name!r}: {_FOREIGN}", field="scheme", value=name)
        new = self._model.source.scheme(name)
        self._known[new.name] = new
        return Conversion(self._model, self.scheme, new, replace)

    def replace(self, index: int, scheme: str) -> None:
        """Convert a layer to a scheme. The index after the last layer is the head."""
        if not isinstance(self._model, Decoder) or self._model.source is None:
            raise BadInput(_FOREIGN)
        replace_part(self._model, index, self._named(scheme))

    def settle(self, scheme: str) -> int:
        """Record that all weights have this scheme. Returns the bytes that the cache gains (or loses)."""
        new = self._named(scheme)
        freed_bytes, self.scheme = self.freed_bytes(new), new
        return freed_bytes

    def _named(self, scheme: str) -> Scheme:
        """A checkpoint's own scheme has a unique name that users cannot choose."""
        return self._known.get(scheme) or scheme_of(self._model, scheme)

    def freed_bytes(self, scheme: Scheme) -> int:
        return int((nbytes(self._model, self.scheme) - nbytes(self._model, scheme)) * self._share)

    def _view(self, name: str, blocks_with: BlocksWith) -> SchemeView:
        if not isinstance(self._model, Decoder) or (source := self._model.source) is None:
            return SchemeView(name, "" if name == self.scheme.name else _FOREIGN, 0)
        if problem := why_not(name, source.device, source.dtype):
            return SchemeView(name, problem, 0)
        scheme = source.scheme(name)
        if scheme.name != name:
            return SchemeView(name, f"for this checkpoint, use {scheme.name}", 0)
        return SchemeView(name, "", nbytes(self._model, scheme), blocks_with(self.freed_bytes(scheme)) or 0)


def scheme_of(model: LanguageModel, name: str) -> Scheme:
    """The scheme that a model was loaded in."""
    return model.source.scheme(name) if isinstance(model, Decoder) and model.source else named(name)


def nbytes(model: LanguageModel, scheme: Scheme) -> int:
    """The approximate size of the weights under a scheme; exact if they are unquantized."""
    assert isinstance(model, Decoder) and model.source is not None
    config, dtype = model.config, model.embed.dtype
    total = sum({id(each): each.nbytes for each in _outside(model)}.values())
    if not config.tied:
        total += model.source.of_head(scheme).nbytes(config.vocab, config.hidden, dtype)
    with torch.device("meta"):
        layers = [block(config, index, dtype) for index in range(len(config.layers))]
    products = [part for layer in layers for part in layer.modules() if isinstance(part, Linear)]
    counted = {id(part.weight) for part in products}
    total += sum(each.nbytes for layer in layers for each in layer.parameters() if id(each) not in counted)
    return total + sum(_kept_in(each, scheme, dtype) for each in products)


def _kept_in(product: Linear, scheme: Scheme, dtype: torch.dtype) -> int:
    outputs, inputs = product.weight.shape
    return scheme.nbytes(outputs, inputs, dtype) if product.quantizes else product.weight.nbytes


def _outside(model: Decoder) -> chain[torch.Tensor]:
    """The tensors that no scheme changes."""
    touched = {"layers"} if model.config.tied else {"layers", "head"}
    parts: list[nn.Module] = [each for name, each in model.named_children() if name not in touched]
    return chain(model.parameters(recurse=False), *(part.parameters() for part in parts))
