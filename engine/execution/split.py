"""What steps on a CPU spend their time on, while somebody asks."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from torch import Tensor, nn

from engine.api.snapshot import StepSplit
from engine.attention.base import Attend
from engine.models.base import LanguageModel

T = TypeVar("T")

_ASKED = 10.0  # seconds for which one question holds
_NEWEST = 0.1  # the weight of the newest step in a running mean
ATTENTION, PRODUCTS, SAMPLING = range(3)


class StepSplitter:
    """Clocks around attention, products and sampling. When nobody asks there is none."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._until = 0.0
        self._clocked: list[tuple[nn.Module, str, Clocked]] = []  # each in its place
        self._spent = [0.0, 0.0, 0.0]
        self.means: StepSplit | None = None

    def ask(self) -> None:
        """From any thread: the next steps are split."""
        self._until = time.monotonic() + _ASKED

    @property
    def on(self) -> bool:
        return bool(self._clocked)

    def begin(self) -> None:
        """A step is about to begin: what the one before it took is counted."""
        asked = time.monotonic() < self._until
        if not asked and not self.on:
            return
        if self.on and any(self._spent):
            old = self.means or StepSplit(*self._spent)
            pairs = zip(old, self._spent, strict=True)
            self.means = StepSplit(*(mean + _NEWEST * (new - mean) for mean, new in pairs))
        self._spent = [0.0, 0.0, 0.0]
        if not asked:
            self.forget()
        elif not self.on:
            self._clock_products()

    def forget(self) -> None:
        """The clocks go: nobody asks any longer, or the model is about to change."""
        for parent, name, clocked in self._clocked:
            parent.add_module(name, clocked.product)
        self._clocked, self.means = [], None

    @contextmanager
    def clock(self, part: int) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._spent[part] += time.perf_counter() - began

    def timed(self, part: int, call: Callable[[], T]) -> T:
        """What the call returns; its time is counted if anybody asks."""
        if not self.on:
            return call()
        with self.clock(part):
            return call()

    def clocked(self, attend: Attend) -> Attend:
        """The same attention; its time is counted if anybody asks."""
        if not self.on:
            return attend

        def timed(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with self.clock(ATTENTION):
                return attend(layer, q, k, v)

        return timed

    def _clock_products(self) -> None:
        """By a module in the place of each: packed products pass torch's hooks by."""
        for parent in list(self._model.modules()):
            for name, child in list(parent.named_children()):
                if _is_product(child):
                    clocked = Clocked(child, self)
                    parent.add_module(name, clocked)
                    self._clocked.append((parent, name, clocked))


class Clocked(nn.Module):
    """A product whose time is counted."""

    def __init__(self, product: nn.Module, splitter: StepSplitter) -> None:
        super().__init__()
        self.product, self._splitter = product, splitter

    def forward(self, x: Tensor) -> Tensor:
        with self._splitter.clock(PRODUCTS):
            out: Tensor = self.product(x)
        return out


def _is_product(module: nn.Module) -> bool:
    """It has a matrix of its own, and is no table."""
    if isinstance(module, nn.Embedding) or next(module.children(), None) is not None:
        return False
    own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return any(tensor.dim() >= 2 for tensor in own)
