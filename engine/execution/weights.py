"""Owns the weights: their scheme, the size under other schemes, and what that leaves for the cache."""

from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple, Self

import torch
from torch import nn

from engine.api.config import ExpertsSpec
from engine.api.errors import BadInput
from engine.api.snapshot import SchemeView
from engine.execution.protocol import WeightsPlan
from engine.later import without_data
from engine.main_memory import trim_heap
from engine.models.base import ForeignProducts, LanguageModel
from engine.models.decoder import Decoder, block
from engine.quant.base import Scheme
from engine.quant.experts import ExpertsLinear
from engine.quant.linear import Linear
from engine.quant.plain import has_copy
from engine.quant.registry import named, names, why_not

BlocksWith = Callable[[int], int | None]  # bytes more -> how many blocks fit; None if the number is fixed

_FOREIGN = "the weights of this model cannot be changed"


class Weights:
    """The weights of a model. They change only between steps, a part at a time: a layer, or the head."""

    def __init__(self, model: LanguageModel, scheme: str, *, share: float) -> None:
        """`scheme`: the name under which the model was loaded. `share`: the fraction of memory freed or
        taken by the weights that the cache gets or gives up.
        """
        self._model, self._share = model.requantizable, share
        self._known: dict[str, Scheme] = {}
        self._views: dict[tuple[str, str], tuple[SchemeView, ...]] = {}  # by both schemes
        self._layers: LayerShapes | None = None  # found at the first question
        self.scheme = self._named(scheme)
        self._known[self.scheme.name] = self.scheme

    def schemes(self, kv_scheme: str, blocks_with: BlocksWith) -> tuple[SchemeView, ...]:
        """All schemes, and why some are not available. Computed once for each pair of schemes in use."""
        pair = self.scheme.name, kv_scheme
        if pair not in self._views:
            self._views[pair] = tuple(self._view(name, blocks_with) for name in names())
        return self._views[pair]

    def plan(self, name: str, blocks_with: BlocksWith) -> WeightsPlan:
        """Plan a change to another scheme. Raises BadInput if it is not possible; changes nothing."""
        if (model := self._model) is None:
            raise BadInput(f"quantization {name!r}: {_FOREIGN}", field="scheme", value=name)
        old, new, source = self.scheme, model.source.scheme(name), model.source
        if new is old:
            return WeightsPlan(old.name, new.name, parts=0)
        source.check()  # without the exact weights it could not be changed back either
        self._known[new.name] = new
        head = source.of_head(old) is not source.of_head(new)
        blocks = blocks_with(self._freed_bytes(model, new))
        return WeightsPlan(old.name, new.name, len(model.layers) + head, blocks)

    def replace(self, part: int, scheme: str) -> None:
        """Make a part again from the exact weights. The part after the last layer is the head.

        The old one is dropped first, since there may not be memory for both.
        """
        if (model := self._model) is None:
            raise BadInput(_FOREIGN)
        new, last = self._named(scheme), len(model.layers)
        if not 0 <= part <= last:
            raise BadInput(f"weights have the parts 0 to {last}, and no part {part}")
        if not isinstance(model, Decoder):
            model.replace(part, new)
        elif part == last:
            model.head = None  # type: ignore[assignment]
            model.head = model.new_head(new)
        else:
            model.layers[part] = None  # type: ignore[assignment]
            model.layers[part] = model.source.layer(part, new)
        if model.source.device.type == "cpu":
            trim_heap()  # fragmentation leaves holes too small for the next part's tensors

    def settle(self, scheme: str) -> int:
        """Record that all weights have this scheme. Returns the bytes that the cache gains (or loses)."""
        if (model := self._model) is None:
            raise BadInput(_FOREIGN)
        new = self._named(scheme)
        freed_bytes, self.scheme = self._freed_bytes(model, new), new
        return freed_bytes

    def _named(self, scheme: str) -> Scheme:
        """A checkpoint's own scheme has a unique name that users cannot choose."""
        if scheme in self._known:
            return self._known[scheme]
        return named(scheme) if self._model is None else self._model.source.scheme(scheme)

    def _freed_bytes(self, model: Decoder | ForeignProducts, scheme: Scheme) -> int:
        return int((self._nbytes(model, self.scheme) - self._nbytes(model, scheme)) * self._share)

    @property
    def operations(self) -> tuple[int, int]:
        """Those of a token's products, in any scheme, and the head's share of them. 0: not counted, as
        transformers runs the model.
        """
        if not isinstance(model := self._model, Decoder):
            return 0, 0
        ranks = 1 if model.collective is None else model.collective.ranks
        head = 0 if model.config.after else 2 * -(-model.config.vocab // ranks) * model.config.hidden
        return self._shapes(model).operations + head, head

    def _shapes(self, model: Decoder) -> "LayerShapes":
        self._layers = self._layers or LayerShapes.of(model)
        return self._layers

    def _nbytes(self, model: Decoder | ForeignProducts, scheme: Scheme) -> int:
        return nbytes(model, scheme, self._shapes(model) if isinstance(model, Decoder) else None)

    def _view(self, name: str, blocks_with: BlocksWith) -> SchemeView:
        if (model := self._model) is None:
            return SchemeView(name, "" if name == self.scheme.name else _FOREIGN, 0)
        source = model.source
        if problem := why_not(name, source.device, source.dtype):
            return SchemeView(name, problem, 0)
        try:
            scheme = source.scheme(name)
        except BadInput as error:  # the ranks cannot share weights in it
            reason, _, _ = str(error).removeprefix(f"quantization {name!r}: ").partition("; ")
            return SchemeView(name, reason, 0)  # beside its name, in a list of all schemes
        if scheme.name != name:
            return SchemeView(name, f"for this checkpoint, use {scheme.name}", 0)
        blocks = blocks_with(self._freed_bytes(model, scheme))
        if scheme is self.scheme and isinstance(model, Decoder):
            return SchemeView(name, "", weight_bytes(model), blocks or 0)
        return SchemeView(name, "", self._nbytes(model, scheme), blocks or 0)


def weight_bytes(model: LanguageModel) -> int:
    """Bytes of the weights as stored now, without the rotary tables, which are computed from the config."""
    tables = (model.rope, model.local_rope) if isinstance(model, Decoder) else ()
    tensors = {id(each): each for each in chain(model.parameters(), model.buffers())}
    return sum(each.nbytes for each in tensors.values() if not any(each is table for table in tables))


class LayerShapes(NamedTuple):
    """What all layers are made of, whatever their scheme. It takes a while to find."""

    # How many: outputs, inputs, and bytes if no scheme changes them.
    products: Counter[tuple[int, int, int | None]]
    rest: int  # bytes
    operations: int  # of a token's products: two for each weight, of experts for each that is chosen

    @classmethod
    def of(cls, model: Decoder) -> Self:
        config, dtype = model.config, model.embed.dtype
        ranks = 1 if model.collective is None else model.collective.ranks
        every = range(len(config.layers))
        layers = without_data(lambda: [block(config, index, dtype, ranks) for index in every])
        products = [part for layer in layers for part in layer.modules() if isinstance(part, Linear)]
        counted = {id(part.weight) for part in products}
        others = (each for layer in layers for each in layer.parameters() if id(each) not in counted)
        shapes = Counter(_shape(part) for part in products for _ in range(_experts(part)))
        rest = sum(each.nbytes for each in others)
        return cls(shapes, rest, 2 * sum(_weights_used(part, config.experts) for part in products))

    def nbytes(self, scheme: Scheme, dtype: torch.dtype, device: torch.device) -> int:
        return self.rest + sum(
            count * (scheme.nbytes(outputs, inputs, dtype, device) if own is None else own)
            for (outputs, inputs, own), count in self.products.items()
        )


def _experts(product: Linear) -> int:
    return product.experts if isinstance(product, ExpertsLinear) else 1


def _shape(product: Linear) -> tuple[int, int, int | None]:
    """Outputs, inputs and bytes if no scheme changes them, of each expert if there are some."""
    experts, (outputs, inputs) = _experts(product), product.weight.shape
    return outputs // experts, inputs, None if product.quantizes else product.weight.nbytes // experts


def _weights_used(product: Linear, experts: ExpertsSpec | None) -> int:
    """How many weights a token is multiplied with."""
    count = product.weight.numel()
    if experts is None or not isinstance(product, ExpertsLinear):
        return count
    return count // product.experts * experts.chosen


def nbytes(model: Decoder | ForeignProducts, scheme: Scheme, layers: LayerShapes | None = None) -> int:
    """The size of the weights under a scheme; approximate if it mixes forms, as a checkpoint may."""
    if not isinstance(model, Decoder):
        return model.nbytes(scheme)
    config, dtype, device = model.config, model.embed.dtype, model.embed.device
    total = sum({id(each): each.nbytes for each in _outside(model)}.values())
    head = model.source.of_head(scheme)
    if not config.tied or head is not named("none") or has_copy(model.embed):
        total += head.nbytes(len(model.embed), config.hidden, dtype, device)
    return total + (layers or LayerShapes.of(model)).nbytes(scheme, dtype, device)


def _outside(model: Decoder) -> chain[torch.Tensor]:
    """The tensors that no scheme changes."""
    parts: list[nn.Module] = [part for name, part in model.named_children() if name not in ("layers", "head")]
    tensors = (chain(part.parameters(), part.buffers()) for part in parts)
    return chain(model.parameters(recurse=False), *tensors)
