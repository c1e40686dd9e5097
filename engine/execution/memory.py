"""Memory by purpose, in bytes; and work that may run out of it."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch

from engine.api.errors import NoMemory, NoRoom
from engine.api.speeds import Reads
from engine.devices import lacking
from engine.execution.traffic import experts_read, weights_read
from engine.execution.weights import Weights, weight_bytes
from engine.kv.store import KVStore
from engine.main_memory import free_host_memory, host_memory
from engine.models.base import LanguageModel

T = TypeVar("T")

_EVERY = 1.0  # seconds; snapshots are more frequent than the driver should be queried


class Holder(Protocol):
    @property
    def nbytes(self) -> int: ...


class MemoryMeter:
    """Measures at most once a second, however often it is read, and after each change."""

    def __init__(
        self,
        model: LanguageModel,
        store: KVStore,
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
        **beside: Holder,
    ) -> None:
        """`beside`: what else holds memory, by its purpose."""
        self._model, self._store, self._device, self._clock = model, store, device, clock
        self._beside = beside
        self._looked = -math.inf
        self._found: dict[str, int] = {}
        self._reads: Reads | None = None

    def read(self) -> dict[str, int]:
        """weights, cache, host_cache; draft, if something drafts beside the model; adapters, if some are
        loaded; on a GPU, workspace (used by steps); device_free, device_total.
        """
        now = self._clock()
        if now - self._looked >= _EVERY:
            self._looked, self._found = now, self._look()
        return self._found

    def forget(self) -> None:
        """Measure at the next read: weights or cache have changed."""
        self._looked, self._reads = -math.inf, None

    def reads(self, weights: Weights | None = None) -> Reads:
        """Bytes that steps read, and the operations of a token, counted again only after a change."""
        store, (products, head) = self._store, (0, 0) if weights is None else weights.operations
        self._reads = self._reads or Reads(
            weights_read(self._model),
            store.read_per_token(),
            store.operations_per_pair(),
            products,
            head,
            *experts_read(self._model),
            store.state_traffic(),
            store.state_operations(),
        )
        return self._reads

    def _look(self) -> dict[str, int]:
        weights, cache = weight_bytes(self._model), self._store.nbytes
        found = {"weights": weights, "cache": cache, "host_cache": self._store.host_nbytes}
        beside = {purpose: holder.nbytes for purpose, holder in self._beside.items() if holder.nbytes}
        found |= beside
        if self._device.type != "cuda":
            return found | {"device_free": free_host_memory(), "device_total": host_memory()}
        free, total = torch.cuda.mem_get_info(self._device)
        taken = torch.cuda.memory_reserved(self._device)
        workspace = max(taken - weights - cache - sum(beside.values()), 0)
        return found | {"workspace": workspace, "device_free": free, "device_total": total}


@contextmanager
def enough_memory() -> Iterator[None]:
    """Say what to do if a model does not fit."""
    try:
        yield
    except RuntimeError as error:
        if (problem := lacking(error)) is None:
            raise
        advice = "another program may use it (see nvidia-smi); a smaller model or --quantization needs less"
        raise NoRoom(f"{problem}; {advice}") from None


def with_memory(work: Callable[[], T], give_back: Callable[[], None], tries: int) -> T:
    """Run `work`. After each of `tries` that run out of memory, call `give_back`; then raise NoMemory."""
    for _ in range(tries):
        try:
            return work()
        except RuntimeError as error:
            if (found := lacking(error)) is None:
                raise
            problem = found
        # The error is gone here, and with it the tensors of the frames it held.
        give_back()
    raise NoMemory(problem)
