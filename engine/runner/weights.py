"""The weights' owner: how they are kept, what other schemes would take, and what that leaves to the cache."""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import nn

from engine.devices import give_back
from engine.errors import BadInput
from engine.models.base import LanguageModel
from engine.models.decoder import Decoder, Layer, Linear
from engine.quant.base import Scheme
from engine.quant.conversion import Conversion
from engine.quant.registry import named, names, why_not
from engine.runner.runner import ModelRunner
from engine.snapshot import SchemeView

_FOREIGN = "this model is run by transformers, whose weights stay as they are"


class Weights:
    """Of one model. Between two steps alone."""

    def __init__(self, model: LanguageModel, runner: ModelRunner, scheme: Scheme, *, share: float) -> None:
        """`share`: of the memory that weights win or lose, what the cache gets or gives."""
        self._model, self._runner, self._share = model, runner, share
        self.scheme = scheme
        self._views: dict[str, tuple[SchemeView, ...]] = {}  # by the cache's form, which its room depends on
        runner.products_changed(recordable=scheme.graphs)

    @property
    def schemes(self) -> tuple[SchemeView, ...]:
        """All there are; what cannot be taken says why. Found out once."""
        form = self._runner.store.scheme
        if form not in self._views:
            self._views[form] = tuple(self._view(name) for name in names())
        return self._views[form]

    def begin(self, name: str) -> Conversion:
        """Raises where it cannot be; nothing has been touched then."""
        if not isinstance(self._model, Decoder) or self._model.source is None:
            raise BadInput(f"quantization {name!r}: {_FOREIGN}", field="scheme", value=name)
        return Conversion(self._model, self.scheme, self._model.source.scheme(name))

    def settle(self, scheme: Scheme) -> None:
        """The model's products are of this scheme now."""
        self._runner.widen(self._won(scheme))
        self.scheme = scheme
        self._runner.products_changed(recordable=scheme.graphs)
        if self._runner.device.type == "cuda":
            torch.cuda.empty_cache()  # what the other products leave is the cache's, and other processes'
        give_back()

    def blocks(self, scheme: Scheme) -> int | None:
        """How many the cache would have under a scheme; None: as many as it has now."""
        return self._runner.blocks_with(self._won(scheme))

    def resize(self, blocks: int, held: Sequence[int]) -> None:
        self._runner.resize(blocks, held)

    def _won(self, scheme: Scheme) -> int:
        """Bytes that the cache gets, or gives."""
        return int((nbytes(self._model, self.scheme) - nbytes(self._model, scheme)) * self._share)

    def _view(self, name: str) -> SchemeView:
        if not isinstance(self._model, Decoder) or (source := self._model.source) is None:
            return SchemeView(name, "" if name == self.scheme.name else _FOREIGN, 0)
        if problem := why_not(name, source.device, source.dtype):
            return SchemeView(name, problem, 0)
        scheme = source.scheme(name)
        if scheme.name != name:
            return SchemeView(name, f"of this checkpoint, that is {scheme.name}", 0)
        return SchemeView(name, "", nbytes(self._model, scheme), self.blocks(scheme) or 0)


def scheme_of(model: LanguageModel, name: str) -> Scheme:
    """What a model has been loaded in."""
    return model.source.scheme(name) if isinstance(model, Decoder) and model.source else named(name)


def nbytes(model: LanguageModel, scheme: Scheme) -> int:
    """What the weights would take under a scheme, nearly."""
    assert isinstance(model, Decoder) and model.source is not None
    config, dtype = model.config, model.embed.dtype
    total = sum({id(each): each.nbytes for each in _outside(model)}.values())
    if not config.tied:
        total += model.source.of_head(scheme).nbytes(config.vocab, config.hidden, dtype)
    with torch.device("meta"):
        layers = [Layer(index, config, dtype) for index in range(len(config.layers))]
    shapes = [part.weight.shape for layer in layers for part in layer.modules() if isinstance(part, Linear)]
    return total + sum(scheme.nbytes(outputs, inputs, dtype) for outputs, inputs in shapes)


def _outside(model: Decoder) -> chain[torch.Tensor]:
    """The tensors that no scheme touches."""
    touched = {"layers"} if model.config.tied else {"layers", "head"}
    parts: list[nn.Module] = [each for name, each in model.named_children() if name not in touched]
    inner = (chain(part.parameters(), part.buffers()) for part in parts)
    return chain(model.parameters(recurse=False), model.buffers(recurse=False), *inner)
