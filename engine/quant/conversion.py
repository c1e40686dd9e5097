"""Converts a model from one scheme to another, one layer at a time, the head last."""

import logging
from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn

from engine.api.errors import EngineError
from engine.devices import give_back
from engine.quant.base import Scheme

logger = logging.getLogger("minichat.engine")

Replace = Callable[[int, Scheme], None]


class Source(Protocol):
    """Creates layers and the head from the exact weights, whatever scheme they are in now."""

    device: torch.device
    dtype: torch.dtype

    def scheme(self, name: str) -> Scheme:
        """Return the scheme of that name if it runs here; `none` is the checkpoint's own format."""

    def check(self) -> None:
        """Raise if the exact weights are no longer available."""

    def layer(self, index: int, scheme: Scheme) -> nn.Module: ...

    def of_head(self, scheme: Scheme) -> Scheme:
        """Return the scheme of the head when the layers use `scheme`."""

    def head(self, scheme: Scheme) -> nn.Module:
        """Create the head of a model whose head is not tied to the embedding."""


class Convertible(Protocol):
    """A model whose layers and head can be created again."""

    layers: nn.ModuleList
    head: nn.Module
    source: Source | None

    @property
    def tied(self) -> bool:
        """Whether the head is tied to the embedding, which is never quantized."""


class Conversion:
    """Drops each layer, reads it again and stores it in the new scheme.

    After an error or a cancel it converts back. Until it is over, the model is a mixture that must not be
    run.
    """

    def __init__(self, model: Convertible, old: Scheme, new: Scheme, replace: Replace | None = None) -> None:
        """`replace`: replaces a layer of the model, by index, with one in the given scheme."""
        assert model.source is not None
        self._model, self._source = model, model.source
        self._replace = replace or (lambda index, scheme: replace_part(model, index, scheme))
        self.old, self.new = old, new
        if new is not old:
            self._source.check()  # without the exact weights it could not convert back either
        heads = [self._source.of_head(scheme) for scheme in (old, new)]
        moved = not model.tied and heads[0] is not heads[1]
        self.done, self.total = 0, len(model.layers) + moved
        self.error = ""  # why it is converting back or has converted back

    @property
    def over(self) -> bool:
        return self.done == (0 if self.error else self.total)

    def cancel(self, reason: str) -> None:
        self.error = self.error or reason

    def advance(self) -> None:
        """Convert one more layer, forward or back. If converting back fails, it raises, and the model is
        lost."""
        if self.error:
            self._replace(self.done - 1, self.old)
            self.done -= 1
            return
        try:
            self._replace(self.done, self.new)
        except Exception as error:  # any error: a broken file, out of memory, a third-party library
            at = (self.new.name, self.done, self.total)
            logger.warning("quantization %s failed at layer %d of %d", *at, exc_info=error)
            self.error = _summary(error)
        self.done += 1


def replace_part(model: Convertible, index: int, scheme: Scheme) -> None:
    """Replace a layer or the head. The old one is dropped first, since there may not be memory for both."""
    source = model.source
    assert source is not None
    if index == len(model.layers):
        model.head = None  # type: ignore[assignment]
        model.head = source.head(scheme)
    else:
        model.layers[index] = None  # type: ignore[assignment]
        model.layers[index] = source.layer(index, scheme)
    if source.device.type == "cpu":
        give_back()  # fragmentation leaves holes too small for the next layer's tensors


def _summary(error: Exception) -> str:
    """Return one sentence. The full text is in the log; on a GPU it is a page about memory."""
    if isinstance(error, EngineError):
        return str(error)
    first = str(error).strip().partition("\n")[0].partition(". ")[0]
    return f"{type(error).__name__}: {first.rstrip('.')}"
