"""Numbers on their way to the device: what belongs together goes in one copy, and nobody waits for it."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

Fields = dict[str, tuple[tuple[int, ...], np.dtype]]  # shapes and types, by name

ALIGNED = 16  # bytes
BEHIND = 3  # steps whose numbers may still be on their way when the next ones are written


def upload(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """The arrays as tensors there; on a CPU they share their memory."""
    if device.type != "cuda":
        return [torch.from_numpy(array) for array in arrays]
    places, size = _places([array.nbytes for array in arrays])
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)  # kept by torch until it has been read
    numbers = host.numpy()
    for place, array in zip(places, arrays, strict=True):
        numbers[place : place + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).ravel()
    there = host.to(device, non_blocking=True)
    kinds = [torch.from_numpy(array[:0]).dtype for array in arrays]
    return [
        there[place : place + array.nbytes].view(kind).view(array.shape)
        for place, array, kind in zip(places, arrays, kinds, strict=True)
    ]


class Form:
    """Fields of fixed shapes: one piece of memory on the device, filled from the host step after step."""

    def __init__(self, fields: Fields, device: torch.device) -> None:
        sizes = [int(np.prod(shape)) * np.dtype(kind).itemsize for shape, kind in fields.values()]
        places, size = _places(sizes)
        pinned = device.type == "cuda"

        def views(numbers: np.ndarray) -> dict[str, np.ndarray]:
            return {
                name: numbers[place : place + bytes_].view(kind).reshape(shape)
                for (name, (shape, kind)), place, bytes_ in zip(fields.items(), places, sizes, strict=True)
            }

        self._hosts = [torch.zeros(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(BEHIND)]
        self._views = [views(host.numpy()) for host in self._hosts]
        self._read = [torch.cuda.Event() for _ in self._hosts] if pinned else []
        self._at = 0
        self._there = torch.zeros(size, dtype=torch.uint8, device=device)
        self.on_device = {
            name: self._there[place : place + bytes_].view(torch.from_numpy(view[:0]).dtype).view(view.shape)
            for (name, view), place, bytes_ in zip(self._views[0].items(), places, sizes, strict=True)
        }

    def blank(self) -> dict[str, np.ndarray]:
        """The fields to fill for the next step; they hold those of an earlier one."""
        self._at = (self._at + 1) % BEHIND
        if self._read:
            self._read[self._at].synchronize()  # over long since, but for steps that failed
        return self._views[self._at]

    def send(self) -> None:
        """Brings what `blank` gave to the device, behind all that was launched before."""
        self._there.copy_(self._hosts[self._at], non_blocking=True)
        if self._read:
            self._read[self._at].record()


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where each begins when they are laid end to end, and how long all are together."""
    places, end = [], 0
    for size in sizes:
        places.append(end)
        end += -(-size // ALIGNED) * ALIGNED
    return places, end
