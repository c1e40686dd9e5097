"""How busy the GPU is and what it draws, from the library that comes with NVIDIA's driver."""

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from engine.api.snapshot import Load

_EVERY = 1.0  # seconds: the driver itself takes means over about as long
_LIBRARY = "libnvidia-ml.so.1"


class _Shares(ctypes.Structure):
    """Of the last moment, in percent."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Nvml:
    """One GPU, asked by its name for life: numbers change with CUDA_VISIBLE_DEVICES."""

    def __init__(self, uuid: str, library: Any) -> None:
        """Raises OSError where the library does not know that GPU, as with a part of one."""
        self._library = library
        self._gpu = ctypes.c_void_p()
        self._ask("nvmlInit_v2")
        self._ask("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}".encode(), ctypes.byref(self._gpu))

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
    """Never waits: a driver may take its time, so a thread asks it, once a second at most."""

    def __init__(self, look: Callable[[], Load], clock: Callable[[], float] = time.monotonic) -> None:
        self._look, self._clock = look, clock
        self._asked = -_EVERY
        self._thread: threading.Thread | None = None
        self._found: Load | None = None

    @classmethod
    def of(cls, device: torch.device) -> "LoadMeter | None":
        """None where nobody says it."""
        if device.type != "cuda":
            return None
        try:
            gpu = Nvml(f"{torch.cuda.get_device_properties(device).uuid}", ctypes.CDLL(_LIBRARY))
        except (OSError, AttributeError):  # no such library, or no such call in it
            return None
        return cls(gpu.look)

    def read(self) -> Load | None:
        """What was found last; has it found anew where that is old."""
        now, found = self._clock(), self._found
        if now - self._asked >= _EVERY and not (self._thread and self._thread.is_alive()):
            self._asked = now
            self._thread = threading.Thread(target=self._find, name="gpu load", daemon=True)
            self._thread.start()
        return found

    def _find(self) -> None:
        try:
            self._found = self._look()
        except OSError:  # it says so no longer
            self._found = None
