"""Device memory that the processes of one machine share, from NVIDIA's driver.

It belongs to the process that allocates it. Another process opens it by a handle of 64 bytes.
"""

import ctypes
from typing import Any

import torch

from engine.kernels.driver import ask

_LAZY_PEER_ACCESS = 1
_MAPPED = 2
HANDLE = 64  # bytes

_Handle = ctypes.c_char * HANDLE


class _OpenedHandle(ctypes.Structure):
    """A handle as an argument, passed by value."""

    _fields_ = [("bytes", _Handle)]


def _enter(device: torch.device) -> None:
    """Make the device's context current on this thread."""
    torch.empty(1, device=device)
    torch.cuda.synchronize(device)


class DeviceMemory:
    """Zeros on a GPU that other processes can open."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        _enter(device)
        address = ctypes.c_uint64()
        ask("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        self.address, self._nbytes = address.value, nbytes
        self.words = torch.as_tensor(_Words(self), device=device)
        self.words.zero_()
        torch.cuda.synchronize(device)

    def handle(self) -> bytes:
        handle = _OpenedHandle()
        ask("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(self.address))
        return ctypes.string_at(ctypes.byref(handle), HANDLE)

    def close(self) -> None:
        ask("cuMemFree_v2", ctypes.c_uint64(self.address))

    def interface(self) -> dict[str, Any]:
        shape, strides = (self._nbytes // 8,), None
        return {
            "shape": shape,
            "strides": strides,
            "typestr": "<i8",
            "data": (self.address, False),
            "version": 3,
        }


class _Words:
    """What torch asks of foreign memory: 8-byte integers."""

    def __init__(self, memory: DeviceMemory) -> None:
        self.__cuda_array_interface__ = memory.interface()


def opened(handle: bytes, device: torch.device) -> int:
    """Return the address of another process's memory, as kernels on `device` see it."""
    if len(handle) != HANDLE:
        raise ValueError(f"a handle has {HANDLE} bytes, not {len(handle)}")
    _enter(device)
    address, given = ctypes.c_uint64(), _OpenedHandle()
    ctypes.memmove(ctypes.byref(given), handle, HANDLE)
    ask("cuIpcOpenMemHandle_v2", ctypes.byref(address), given, ctypes.c_uint(_LAZY_PEER_ACCESS))
    return address.value


def closed(address: int) -> None:
    """Give back another process's memory. The context of the device must be current."""
    ask("cuIpcCloseMemHandle", ctypes.c_uint64(address))


class MappedPages:
    """Memory of this process that kernels can access: whole pages."""

    def __init__(self, here: int, nbytes: int, device: torch.device) -> None:
        _enter(device)
        self._here, seen = here, ctypes.c_uint64()
        ask("cuMemHostRegister_v2", ctypes.c_void_p(here), ctypes.c_size_t(nbytes), ctypes.c_uint(_MAPPED))
        ask("cuMemHostGetDevicePointer_v2", ctypes.byref(seen), ctypes.c_void_p(here), ctypes.c_uint(0))
        self.address = seen.value  # as kernels see it

    def close(self) -> None:
        ask("cuMemHostUnregister", ctypes.c_void_p(self._here))
