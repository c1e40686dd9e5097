"""The weights' owner: how they are kept, what other schemes would take, and what that leaves to the cache."""

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

BlocksWith = Callable[[int], int | None]  # how many fit with so many bytes more; None: as many as now

_FOREIGN = "this model is run by transformers, whose weights stay as they are"


class Weights:
    """Of one model. What changes them comes between two steps."""

    def __init__(self, model: LanguageModel, scheme: Scheme, *, share: float) -> None:
        """`share`: of the memory that weights win or lose, what the cache gets or gives."""
        self._model, self._share = model, share
        self.scheme = scheme
        self._known = {scheme.name: scheme}
        self._views: dict[str, tuple[SchemeView, ...]] = {}  # by the cache's form, which its room depends on

    def schemes(self, kv_scheme: str, blocks_with: BlocksWith) -> tuple[SchemeView, ...]:
        """All there are; what cannot be taken says why. Found out once for each form of the cache."""
        if kv_scheme not in self._views:
            self._views[kv_scheme] = tuple(self._view(name, blocks_with) for name in names())
        return self._views[kv_scheme]

    def begin(self, name: str, replace: Replace) -> Conversion:
        """Raises where it cannot be; nothing has been touched then."""
        if not isinstance(self._model, Decoder) or self._model.source is None:
            raise BadInput(f"quantization {name!r}: {_FOREIGN}", field="scheme", value=name)
        new = self._model.source.scheme(name)
        self._known[new.name] = new
        return Conversion(self._model, self.scheme, new, replace)

    def replace(self, index: int, scheme: str) -> None:
        """A layer, or behind the last one the head, in that scheme."""
        if not isinstance(self._model, Decoder) or self._model.source is None:
            raise BadInput(_FOREIGN)
        replace_part(self._model, index, self._named(scheme))

    def settle(self, scheme: str) -> int:
        """The model's products are of this scheme now. Gives the bytes that the cache gets, or gives."""
        new = self._named(scheme)
        won, self.scheme = self.won(new), new
        return won

    def _named(self, scheme: str) -> Scheme:
        """A checkpoint's own form has a name of its own, which cannot be asked for."""
        return self._known.get(scheme) or scheme_of(self._model, scheme)

    def won(self, scheme: Scheme) -> int:
        return int((nbytes(self._model, self.scheme) - nbytes(self._model, scheme)) * self._share)

    def _view(self, name: str, blocks_with: BlocksWith) -> SchemeView:
        if not isinstance(self._model, Decoder) or (source := self._model.source) is None:
            return SchemeView(name, "" if name == self.scheme.name else _FOREIGN, 0)
        if problem := why_not(name, source.device, source.dtype):
            return SchemeView(name, problem, 0)
        scheme = source.scheme(name)
        if scheme.name != name:
            return SchemeView(name, f"of this checkpoint, that is {scheme.name}", 0)
        return SchemeView(name, "", nbytes(self._model, scheme), blocks_with(self.won(scheme)) or 0)


def scheme_of(model: LanguageModel, name: str) -> Scheme:
    """What a model has been loaded in."""
    return model.source.scheme(name) if isinstance(model, Decoder) and model.source else named(name)


def nbytes(model: LanguageModel, scheme: Scheme) -> int:
    """What the weights would take under a scheme, nearly; unquantized ones exactly that."""
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
    """The tensors that no scheme touches."""
    touched = {"layers"} if model.config.tied else {"layers", "head"}
    parts: list[nn.Module] = [each for name, each in model.named_children() if name not in touched]
    return chain(model.parameters(recurse=False), *(part.parameters() for part in parts))
