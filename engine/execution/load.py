"""GPU utilization and power draw, from the NVML library of NVIDIA's driver."""

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from engine.api.snapshot import Load

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
        self._ask("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}".encode(), ctypes.byref(self._gpu))

    @classmethod
    def of(cls, device: torch.device) -> "Nvml | None":
        """The GPU, or None if the driver cannot measure it."""
        if device.type != "cuda":
            return None
        try:
            return cls(f"{torch.cuda.get_device_properties(device).uuid}", ctypes.CDLL(_LIBRARY))
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
        """A meter for the device, or None if its load cannot be measured."""
        gpu = Nvml.of(device)
        return cls(gpu.look) if gpu else None

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
