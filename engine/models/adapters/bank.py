"""The adapters that a runner has loaded, on its device."""

from collections.abc import Hashable
from functools import cached_property
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from engine.api.errors import BadInput, BadWire
from engine.models.adapters.files import AdapterFiles, read_adapter
from engine.models.adapters.matrices import AdapterMatrices
from engine.models.adapters.products import StepAdapters, Upload
from engine.models.adapters.table import AdapterTable
from engine.models.adapters.targets import adaptable, adapter_targets
from engine.models.base import LanguageModel


class AdapterBank:
    """Loads and drops adapters by number, and prepares those of a step."""

    def __init__(self, model: LanguageModel, device: torch.device) -> None:
        self._model, self._device = model, device
        # On a CPU, thin products of bfloat16 are several times slower than those of float32.
        on_cpu = device.type == "cpu"
        self._dtype = torch.float32 if on_cpu else next(iter(model.parameters())).dtype
        self.launches = not on_cpu  # whether kernels add them, which graphs can hold
        self._read: dict[Path, AdapterFiles] = {}  # read ahead by other threads
        self._gate = Lock()  # guards what was read

    @cached_property
    def _loaded(self) -> AdapterTable | AdapterMatrices:
        if not self.launches:
            return AdapterMatrices(self._device)
        return AdapterTable(adapter_targets(adaptable(self._model)).values(), self._dtype, self._device)

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
            self.put(number, found)
        except (RuntimeError, MemoryError) as error:
            raise BadInput(f"no room for the adapter in {folder}: {error}") from None

    def put(self, number: int, files: AdapterFiles) -> None:
        self._loaded.put(number, files)

    def drop(self, number: int) -> None:
        """Release an adapter. No step in flight may use it."""
        self._loaded.drop(number)

    @property
    def nbytes(self) -> int:
        return self._loaded.nbytes if "_loaded" in vars(self) else 0  # not every model can have some

    @property
    def layout(self) -> Hashable:
        """What the launches of a step with adapters depend on."""
        return self._loaded.layout

    def places(self, adapters: np.ndarray) -> np.ndarray:
        """Where kernels find the adapters of rows, given their numbers."""
        for number in {*adapters.tolist()} - {0}:
            if number not in self._loaded:
                raise BadWire(f"the step names adapter {number}, which is not loaded")
        return self._loaded.places(adapters)

    def of_step(self, adapters: np.ndarray, lengths: np.ndarray, upload: Upload) -> StepAdapters | None:
        """Return the adapters of a step's tokens, given those of its rows; None if no row has one."""
        if not adapters.any():
            return None
        places = self.places(adapters)
        if isinstance(self._loaded, AdapterMatrices):
            return self._loaded.of_step(places, lengths, upload)
        return self.at(*upload([np.repeat(places, lengths)]))

    def at(self, places: Tensor) -> StepAdapters:
        """Return the adapters of tokens by their places, which kernels read from the device."""
        # Imports Triton, which is only installed with a GPU.
        from engine.models.adapters.launched import LaunchedAdapters

        assert isinstance(self._loaded, AdapterTable)
        return LaunchedAdapters(self._loaded, places)
