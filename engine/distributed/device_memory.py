"""Device memory that the processes of one machine share, from NVIDIA's driver.

It belongs to the process that allocates it. Another process opens it by a handle of 64 bytes. If the first
process ends, the memory stays until all others have given it back.
"""

import ctypes
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from engine.api.errors import EngineError
from engine.kernels.driver import ask

_LAZY_PEER_ACCESS = 1
_MAPPED = 2
HANDLE = 64  # bytes
PERIOD = 0.1  # seconds between two readings of counters

_Handle = ctypes.c_char * HANDLE


class _OpenedHandle(ctypes.Structure):
    """A handle as an argument, passed by value."""

    _fields_ = [("bytes", _Handle)]


@contextmanager
def _entered(device: torch.device) -> Iterator[None]:
    """Make the device's context current on this thread, without waiting: another one may capture a graph."""
    with torch.cuda.device(device):
        torch.cuda.mem_get_info(device)
        yield


class DeviceMemory:
    """Zeros on a GPU that other processes can open."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        """`nbytes`: a multiple of 8."""
        with _entered(device):
            address = ctypes.c_uint64()
            ask("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
            self.address, self._device = address.value, device
            self.bytes = _Bytes(self.address, nbytes).tensor(device)
            self.words = self.bytes.view(torch.int64)
            self.words.zero_()
            torch.cuda.synchronize(device)

    def handle(self) -> bytes:
        handle = _OpenedHandle()
        with _entered(self._device):
            ask("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(self.address))
        return ctypes.string_at(ctypes.byref(handle), HANDLE)

    def close(self) -> None:
        ask("cuMemFree_v2", ctypes.c_uint64(self.address))


class _Bytes:
    """Memory that torch has not allocated. A tensor over it keeps this object."""

    def __init__(self, address: int, nbytes: int) -> None:
        self._address = address
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "strides": None,
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }

    def tensor(self, device: torch.device) -> Tensor:
        """The memory as the device's own, wherever it is."""
        found = torch.as_tensor(self, device=device)
        if found.data_ptr() != self._address:
            raise EngineError(f"torch has copied the memory at {self._address:#x} instead of using it")
        return found


def opened_bytes(handle: bytes, nbytes: int, device: torch.device) -> Tensor:
    """Another process's memory, as bytes that kernels on `device` see. It is given back after the last tensor
    that uses it. `device`: with its number.
    """
    address = opened(handle, device)
    memory = _Bytes(address, nbytes)
    weakref.finalize(memory, _give_back, address, device).atexit = False
    return memory.tensor(device)


def _give_back(address: int, device: torch.device) -> None:
    with suppress(EngineError, RuntimeError), _entered(device):  # a lost GPU has no memory
        closed(address)


def opened(handle: bytes, device: torch.device) -> int:
    """Return the address of another process's memory, as kernels on `device` see it."""
    if len(handle) != HANDLE:
        raise ValueError(f"a handle has {HANDLE} bytes, not {len(handle)}")
    address, given = ctypes.c_uint64(), _OpenedHandle()
    ctypes.memmove(ctypes.byref(given), handle, HANDLE)
    with _entered(device):
        ask("cuIpcOpenMemHandle_v2", ctypes.byref(address), given, ctypes.c_uint(_LAZY_PEER_ACCESS))
    return address.value


def closed(address: int) -> None:
    """Give back another process's memory. The context of the device must be current."""
    ask("cuIpcCloseMemHandle", ctypes.c_uint64(address))


class MappedPages:
    """Memory of this process that kernels can access: whole pages."""

    def __init__(self, here: int, nbytes: int, device: torch.device) -> None:
        self._here, seen = here, ctypes.c_uint64()
        size, flags = ctypes.c_size_t(nbytes), ctypes.c_uint(_MAPPED)
        with _entered(device):
            ask("cuMemHostRegister_v2", ctypes.c_void_p(here), size, flags)
            ask("cuMemHostGetDevicePointer_v2", ctypes.byref(seen), ctypes.c_void_p(here), ctypes.c_uint(0))
        self.address = seen.value  # as kernels see it

    def close(self) -> None:
        ask("cuMemHostUnregister", ctypes.c_void_p(self._here))


class Counters:
    """Numbers that kernels add up, read now and then without waiting for a kernel."""

    def __init__(self, counted: Tensor) -> None:
        """`counted`: on a GPU. The copies run on a stream of their own."""
        self._counted = counted
        self._copied = torch.zeros(counted.shape, dtype=counted.dtype, pin_memory=True)
        self._stream, self._event = torch.cuda.Stream(counted.device), torch.cuda.Event()
        self._values, self._due = self._copied.tolist(), 0.0

    def values(self) -> list[int]:
        """What they were at the latest copy that has arrived, which was started at most two periods ago."""
        with suppress(RuntimeError):  # if the GPU is lost, the step reports it
            if time.monotonic() >= self._due and self._event.query():
                self._values, self._due = self._copied.tolist(), time.monotonic() + PERIOD
                with torch.cuda.stream(self._stream):
                    self._copied.copy_(self._counted, non_blocking=True)
                    self._event.record()
        return self._values
