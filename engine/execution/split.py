"""Measures what steps on a CPU spend their time on, while a reader asks for it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from torch import Tensor, nn

from engine.api.snapshot import StepSplit
from engine.attention.base import Attend, Values
from engine.models.base import LanguageModel

T = TypeVar("T")

_LASTS = 10.0  # seconds that a request for measurements lasts
_NEWEST = 0.1  # the weight of the newest step in a running mean
ATTENTION, PRODUCTS, SAMPLING, LAUNCH = range(4)  # the launch contains the others


class StepSplitter:
    """Timers around attention, matrix products, sampling and the whole, installed only while needed."""

    def __init__(
        self,
        model: LanguageModel,
        clock: Callable[[], float] = time.monotonic,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`clock` says how long a request lasts, `timer` how long a part takes."""
        self._model, self._clock, self._timer = model, clock, timer
        self._until, self.begun = 0.0, 0  # `begun`: steps
        self._clocked: list[tuple[nn.Module, str, Clocked]] = []  # the installed timers
        self._spent, self._steps = [0.0] * (LAUNCH + 1), 0  # of this step; and the measured steps
        self.means: StepSplit | None = None

    def ask(self) -> None:
        """Measure the next steps. Callable from any thread."""
        self._until = self._clock() + _LASTS

    @property
    def on(self) -> bool:
        return bool(self._clocked)

    def begin(self) -> None:
        """Start a step: record the times of the one before."""
        self.begun += 1
        requested = self._clock() < self._until
        if not requested and not self.on:
            return
        if self.on and any(self._spent):
            self._note()
        self._spent = [0.0] * (LAUNCH + 1)
        if not requested:
            self.forget()
        elif not self.on:
            self._clock_products()

    def _note(self) -> None:
        """The first step is not counted: it is slow, because the device may be measured beside it."""
        self._steps += 1
        if self._steps > 1:
            weight, old = max(1 / (self._steps - 1), _NEWEST), self.means or StepSplit(0.0, 0.0, 0.0, 0.0)
            pairs = zip(old, self._spent, strict=True)
            self.means = StepSplit(*(mean + weight * (new - mean) for mean, new in pairs))

    def forget(self) -> None:
        """Remove the timers, because no reader asks, or the model is about to change."""
        for parent, name, clocked in self._clocked:
            parent.add_module(name, clocked.product)
        self._clocked, self._steps, self.means = [], 0, None

    @contextmanager
    def clock(self, part: int) -> Iterator[None]:
        began = self._timer()
        try:
            yield
        finally:
            self._spent[part] += self._timer() - began

    def timed(self, part: int, call: Callable[[], T]) -> T:
        """Return the call's result; measure its time if measuring is on."""
        if not self.on:
            return call()
        with self.clock(part):
            return call()

    def clocked(self, attend: Attend) -> Attend:
        """Wrap the attention with a timer if measuring is on."""
        if not self.on:
            return attend

        def timed(layer: int, q: Tensor, k: Tensor, v: Values) -> Tensor:
            with self.clock(ATTENTION):
                return attend(layer, q, k, v)

        return timed

    def _clock_products(self) -> None:
        """Replace each product with a timed wrapper. torch's hooks do not work for packed products."""
        for parent in list(self._model.modules()):
            for name, child in list(parent.named_children()):
                if _is_product(child):
                    clocked = Clocked(child, self)
                    parent.add_module(name, clocked)
                    self._clocked.append((parent, name, clocked))


class Clocked(nn.Module):
    """A matrix product whose time is measured."""

    def __init__(self, product: nn.Module, splitter: StepSplitter) -> None:
        super().__init__()
        self.product, self._splitter = product, splitter

    def forward(self, x: Tensor) -> Tensor:
        with self._splitter.clock(PRODUCTS):
            out: Tensor = self.product(x)
        return out


def _is_product(module: nn.Module) -> bool:
    """Whether the module has its own matrix and is not an embedding."""
    if isinstance(module, nn.Embedding) or next(module.children(), None) is not None:
        return False
    own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return any(tensor.dim() >= 2 for tensor in own)
