"""From one scheme to another, a layer at a time; last comes the head, where it goes along."""

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
    """Makes layers and the head from the exact weights, whatever the present ones are kept as."""

    device: torch.device
    dtype: torch.dtype

    def scheme(self, name: str) -> Scheme:
        """The scheme of that name, if it runs here; `none` is what the checkpoint has."""

    def check(self) -> None:
        """Raises where the exact weights are no longer to be had."""

    def layer(self, index: int, scheme: Scheme) -> nn.Module: ...

    def of_head(self, scheme: Scheme) -> Scheme:
        """What `head` keeps it in, beside layers of that scheme."""

    def head(self, scheme: Scheme) -> nn.Module:
        """Of a model whose head is not the embedding's table."""


class Convertible(Protocol):
    """A model whose layers and head can be made anew."""

    layers: nn.ModuleList
    head: nn.Module
    source: Source | None

    @property
    def tied(self) -> bool:
        """Whether the head is the embedding's table, which no scheme touches."""


class Conversion:
    """Each layer is let go of, read anew, and kept in the new form. A failure, or a wish, turns it round.

    Until it is over the model is a mixture that nobody may compute with.
    """

    def __init__(self, model: Convertible, old: Scheme, new: Scheme, replace: Replace | None = None) -> None:
        """`replace`: puts a layer, by its index, into the model in a scheme."""
        assert model.source is not None
        self._model, self._source = model, model.source
        self._replace = replace or (lambda index, scheme: replace_part(model, index, scheme))
        self.old, self.new = old, new
        if new is not old:
            self._source.check()  # without them there is no way back either
        heads = [self._source.of_head(scheme) for scheme in (old, new)]
        moved = not model.tied and heads[0] is not heads[1]
        self.done, self.total = 0, len(model.layers) + moved
        self.error = ""  # why it goes back, or has gone back

    @property
    def over(self) -> bool:
        return self.done == (0 if self.error else self.total)

    def cancel(self, reason: str) -> None:
        self.error = self.error or reason

    def advance(self) -> None:
        """One layer forward, or back. Raises where the way back fails, too: there is no model then."""
        if self.error:
            self._replace(self.done - 1, self.old)
            self.done -= 1
            return
        try:
            self._replace(self.done, self.new)
        except Exception as error:  # whatever it is: a broken file, no memory, a library of somebody else's
            at = (self.new.name, self.done, self.total)
            logger.warning("quantization %s failed at layer %d of %d", *at, exc_info=error)
            self.error = _in_words(error)
        self.done += 1


def replace_part(model: Convertible, index: int, scheme: Scheme) -> None:
    """The present part goes first: there need not be room for both."""
    source = model.source
    assert source is not None
    if index == len(model.layers):
        model.head = None  # type: ignore[assignment]
        model.head = source.head(scheme)
    else:
        model.layers[index] = None  # type: ignore[assignment]
        model.layers[index] = source.layer(index, scheme)
    if source.device.type == "cpu":
        give_back()  # between what stays, holes are left that no tensor of the next layer may fit into


def _in_words(error: Exception) -> str:
    """One sentence. The log has the rest, which on a GPU is a page on memory."""
    if isinstance(error, EngineError):
        return str(error)
    first = str(error).strip().partition("\n")[0].partition(". ")[0]
    return f"{type(error).__name__}: {first.rstrip('.')}"
