"""How busy the GPU is, from the NVML library of NVIDIA's driver, and the experts of a model."""

import ctypes
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from engine.api.expert_load import ExpertLoad
from engine.api.snapshot import Load
from engine.models.base import LanguageModel
from engine.models.decoder import Decoder
from engine.models.layers.moe import MoE

_EVERY = 1.0  # seconds; the driver averages over about as long
_LIBRARY = "libnvidia-ml.so.1"


class _Shares(ctypes.Structure):
    """Utilization of the last interval, in percent."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Nvml:
    """A GPU, identified by its UUID, because indices change with CUDA_VISIBLE_DEVICES."""

    def __init__(self, uuid: str, library: Any) -> None:
        """Raises OSError if the library does not list the GPU, such as a MIG partition."""
        self._library = library
        self._gpu = ctypes.c_void_p()
        self._ask("nvmlInit_v2")
        name = f"GPU-{uuid.removeprefix('GPU-')}".encode()
        self._ask("nvmlDeviceGetHandleByUUID", name, ctypes.byref(self._gpu))

    @classmethod
    def of(cls, device: torch.device) -> "Nvml | None":
        """The GPU, or None if the driver cannot measure it."""
        if device.type != "cuda":
            return None
        return cls.named(f"{torch.cuda.get_device_properties(device).uuid}")

    @classmethod
    def named(cls, uuid: str) -> "Nvml | None":
        """`uuid`: with or without the prefix that tells GPUs from other devices."""
        try:
            return cls(uuid, ctypes.CDLL(_LIBRARY))
        except (OSError, AttributeError):  # no such library, or it lacks the function
            return None

    def joules(self) -> float:
        """Energy used since the driver was loaded. Raises OSError if the GPU does not count it."""
        used = ctypes.c_ulonglong()
        self._ask("nvmlDeviceGetTotalEnergyConsumption", self._gpu, ctypes.byref(used))
        return used.value / 1000

    def look(self) -> Load:
        shares, limit, draw = _Shares(), ctypes.c_uint(), ctypes.c_uint()
        self._ask("nvmlDeviceGetUtilizationRates", self._gpu, ctypes.byref(shares))
        self._ask("nvmlDeviceGetPowerUsage", self._gpu, ctypes.byref(draw))
        self._ask("nvmlDeviceGetEnforcedPowerLimit", self._gpu, ctypes.byref(limit))
        return Load(shares.gpu / 100, draw.value / 1000, limit.value / 1000)

    def _ask(self, function: str, *arguments: Any) -> None:
        if code := getattr(self._library, function)(*arguments):
            raise OSError(f"{function}: error {code}")


class LoadMeter:
    """Never blocks: the driver may be slow, so a thread queries it, at most once a second."""

    def __init__(self, look: Callable[[], Load], clock: Callable[[], float] = time.monotonic) -> None:
        self._look, self._clock = look, clock
        self._queried_at = -_EVERY
        self._thread: threading.Thread | None = None
        self._found: Load | None = None

    @classmethod
    def of(cls, device: torch.device) -> "LoadMeter | None":
        """A meter for the device, or None if it is not a GPU. The library is loaded by the first query."""
        return cls._asking(partial(Nvml.of, device)) if device.type == "cuda" else None

    @classmethod
    def named(cls, uuid: str) -> "LoadMeter":
        """A meter for a GPU, which may be another process's."""
        return cls._asking(partial(Nvml.named, uuid))

    @classmethod
    def _asking(cls, find: Callable[[], Nvml | None]) -> "LoadMeter":
        gpu = cache(find)

        def look() -> Load:
            if (found := gpu()) is None:
                raise OSError("the load of this GPU cannot be measured")
            return found.look()

        return cls(look)

    def read(self) -> Load | None:
        """The last result. Starts a new query if that is old."""
        now, found = self._clock(), self._found
        if now - self._queried_at >= _EVERY and not (self._thread and self._thread.is_alive()):
            self._queried_at = now
            self._thread = threading.Thread(target=self._find, name="gpu load", daemon=True)
            self._thread.start()
        return found

    def _find(self) -> None:
        try:
            self._found = self._look()
        except OSError:  # it can no longer be measured
            self._found = None


class ExpertMeter:
    """Reads a model's counters of the tokens of its experts, without waiting for the device."""

    def __init__(self, model: LanguageModel) -> None:
        self._load: ExpertLoad | None = None
        if not isinstance(model, Decoder) or model.tally is None or (spec := model.config.experts) is None:
            return
        self._counts = model.tally.counts
        self._rows = [
            each.index for each in model.blocks if any(isinstance(part, MoE) for part in each.parts)
        ]
        on_gpu = self._counts.device.type == "cuda"
        self._host = torch.zeros(self._counts.shape, dtype=torch.int64, pin_memory=on_gpu)
        self._arrived: torch.cuda.Event | None = None
        layers = tuple(model.config.before + row for row in self._rows)
        self._load = ExpertLoad(layers, spec.count, spec.chosen, self._column())

    def read(self) -> ExpertLoad | None:
        """The counts up to now; on a GPU, up to an earlier read. None: the model has no experts."""
        if self._load is None:
            return None
        if self._counts.device.type != "cuda":
            self._host.copy_(self._counts)
            self._load = self._load._replace(counts=self._column())
        elif self._arrived is None or self._arrived.query():
            self._load = self._load._replace(counts=self._column())
            self._host.copy_(self._counts, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()
        return self._load

    def _column(self) -> np.ndarray:
        """A copy of what has arrived."""
        column: np.ndarray = self._host.numpy()[self._rows].reshape(-1)
        column.setflags(write=False)
        return column
