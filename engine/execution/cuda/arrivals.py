"""Blocks that arrive from host memory layer by layer, and steps whose layers wait for their own blocks only.

The copies of a load are launched in the order of the layers. After those of each group of layers an event is
recorded, and a step waits for it just before the first layer of the group, in a CUDA graph or without. The
events are always the same ones, because a graph holds them.

A step that waits has a graph of its own, so that other steps do not pay for the waits. A server's warm-up
captures those of usual messages.

A load that is ordered while a step is in flight, or while another one arrives by layer, is copied at once:
its events would replace those that the step waits for. Steps wait for the whole of such a load.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise

import numpy as np
import torch

from engine.kernels.driver import copy_rectangles
from engine.kv.store import KVLayer, KVStore
from engine.scheduling.step import Step

Wait = Callable[[int], None] | None  # have the current stream wait for a layer's blocks; None: all are there
_FOLLOWS_NONE = nullcontext()
GROUPS = 8  # of layers; the copies have a lead, since they begin before the host launches the step


class Arrivals:
    """What has arrived of a load, and the loads that the next step follows."""

    def __init__(self, layers: Sequence[KVLayer], events: Sequence[torch.cuda.Event] = ()) -> None:
        """`layers`: the device's cache. `events`: at most one for each of them; without any, as a whole."""
        self._layers, self._events, groups = layers, events, len(events)
        self.by_layer = bool(events)  # False: loads from now on arrive as a whole
        ends = (len(layers) * at // groups for at in range(groups + 1) if groups)
        self._groups = [*pairwise(ends)]
        self._before = {first: event for (first, _), event in zip(self._groups, events, strict=True)}
        self._collected: list[np.ndarray] | None = None  # None: copies are launched at once
        self._followed: list[torch.cuda.Event] = []
        self.wait: Wait = None  # of the current step

    @property
    def waiting(self) -> Wait:
        """What a step that waits by layer calls. None: no load arrives that way."""
        return self._wait if self.by_layer else None

    @classmethod
    def on(cls, device: torch.device, store: KVStore) -> "Arrivals":
        """By layer, if it is a GPU with host memory below, and a block has the tokens of all layers."""
        if device.type != "cuda" or not store.host_blocks or len(store.groups) > 1:
            return cls(store.memory)
        events = [torch.cuda.Event(external=True) for _ in range(min(GROUPS, len(store.layers)))]
        for event in events:
            event.record(torch.cuda.current_stream(device))  # torch creates it now: a graph cannot
        return cls(store.layers, events)

    def launch(self, work: Callable[[], None]) -> bool:
        """Run a work that copies blocks, on the current stream. Whether steps can wait for its layers."""
        self._collected = [] if self.by_layer and self._events[-1].query() else None
        try:
            work()
            found = self._collected
        finally:
            self._collected = None
        if not found:
            return False
        runs, stream = np.concatenate(found), torch.cuda.current_stream().cuda_stream
        ends = np.cumsum([0, *(sum(1 for _ in layer.tensors()) for layer in self._layers)])
        for (first, end), event in zip(self._groups, self._events, strict=True):
            copy_rectangles(runs[:, ends[first] : ends[end]], stream)
            event.record()
        return True

    def collect(self, found: np.ndarray) -> bool:
        """Launch these copies [runs, tensors of all layers] when the work ends. False: launch them now."""
        if self._collected is None:
            return False
        self._collected += [found] if len(found) else []
        return True

    def follow(self, end: torch.cuda.Event) -> None:
        """Have the next step wait for the blocks of a launched work. `end`: is recorded after it."""
        self._followed.append(end)

    def awaited(self, step: Step, *, kernels: bool) -> AbstractContextManager[None]:
        """Launch a step that waits for the transfers it follows. `kernels`: the forward pass calls `wait`.

        Later steps run after it, so they do not wait again. If it fails, the next one waits.
        """
        return self._following(step, kernels) if self._followed else _FOLLOWS_NONE

    @contextmanager
    def _following(self, step: Step, kernels: bool) -> Iterator[None]:
        others = step.drafts or step.copies  # read blocks before the forward pass
        arrived = all(end.query() for end in self._followed)  # the events may be a later load's by now
        if not arrived and kernels and step.single < len(step.rows) and not others:
            self.wait = self._wait
        else:
            for end in self._followed:
                end.wait()
        try:
            yield
            self._followed.clear()
        finally:
            self.wait = None

    def _wait(self, layer: int) -> None:
        """Have the current stream wait for a group's blocks before its first layer."""
        if (event := self._before.get(layer)) is not None:
            event.wait()
