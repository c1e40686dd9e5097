"""The adapters that a runner has loaded, on its device."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from engine.api.errors import BadInput, BadWire
from engine.models.adapters.files import AdapterFiles, read_adapter
from engine.models.adapters.products import (
    MASKED_TOKENS,
    AdapterStack,
    GroupedAdapters,
    LowRank,
    LowRanks,
    MaskedAdapters,
    OneAdapter,
    StepAdapters,
)
from engine.models.adapters.targets import adaptable, adapter_targets
from engine.models.base import LanguageModel

Upload = Callable[[Sequence[np.ndarray]], list[Tensor]]  # copies arrays to the device without waiting

_STACKS = 4  # kept for the sets of adapters that decode together


class AdapterBank:
    """Loads and drops adapters by number, and prepares those of a step."""

    def __init__(self, model: LanguageModel, device: torch.device) -> None:
        self._model, self._device = model, device
        # On a CPU, thin products of bfloat16 are several times slower than those of float32.
        on_cpu = device.type == "cpu"
        self._dtype = torch.float32 if on_cpu else next(iter(model.parameters())).dtype
        self._loaded: dict[int, LowRanks] = {}
        self._read: dict[Path, AdapterFiles] = {}  # read ahead by other threads
        self._stacks: OrderedDict[tuple[int, ...], AdapterStack] = OrderedDict()
        self._gate = Lock()  # guards what was read

    def read(self, folder: Path) -> AdapterFiles:
        """Read and check an adapter, from any thread. The next `load` of the folder uses it."""
        config = adaptable(self._model)
        found = read_adapter(folder, adapter_targets(config), self._dtype)
        with self._gate:
            self._read[folder] = found
        return found

    def load(self, number: int, folder: Path, digest: bytes) -> None:
        """Move an adapter to the device. `digest`: of what was read; a folder that has changed is refused."""
        with self._gate:
            found = self._read.get(folder)
        found = found or self.read(folder)
        with self._gate:
            self._read.clear()
        if found.digest != digest:
            raise BadInput(f"the adapter in {folder} has changed since it was read")
        try:
            self._loaded[number] = {
                key: LowRank(*(half.to(self._device) for half in pair))
                for key, pair in found.products.items()
            }
        except (RuntimeError, MemoryError) as error:
            raise BadInput(f"no room for the adapter in {folder}: {error}") from None

    def drop(self, number: int) -> None:
        """Release an adapter. No step in flight may use it."""
        self._loaded.pop(number, None)
        for key in [key for key in self._stacks if number in key]:
            del self._stacks[key]

    @property
    def nbytes(self) -> int:
        """The bytes of all loaded adapters, apart from copies for steps that mix them."""
        pairs = (pair for each in self._loaded.values() for pair in each.values())
        return sum(half.nbytes for pair in pairs for half in pair)

    def of_step(self, adapters: np.ndarray, lengths: np.ndarray, upload: Upload) -> StepAdapters | None:
        """Return the adapters of a step's tokens, given those of its rows; None if no row has one."""
        if not adapters.any():
            return None
        used = tuple(sorted({*adapters.tolist()} - {0}))
        for number in used:
            if number not in self._loaded:
                raise BadWire(f"the step names adapter {number}, which is not loaded")
        if len(used) == 1 and adapters.all():
            return OneAdapter(self._loaded[used[0]])
        tokens = np.repeat(adapters, lengths)
        if len(tokens) <= MASKED_TOKENS:
            return MaskedAdapters(self._stack(used), upload([tokens])[0])
        places = upload([(tokens == number).nonzero()[0] for number in used])
        return GroupedAdapters([(self._loaded[each], at) for each, at in zip(used, places, strict=True)])

    def _stack(self, used: tuple[int, ...]) -> AdapterStack:
        if (found := self._stacks.get(used)) is None:
            found = self._stacks[used] = AdapterStack.of({each: self._loaded[each] for each in used})
            if len(self._stacks) > _STACKS:
                self._stacks.popitem(last=False)
        self._stacks.move_to_end(used)
        return found
