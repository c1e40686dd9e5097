"""Asynchronous copies of numbers to the device and back, batched into one copy."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.timeline import timed

Fields = dict[str, tuple[tuple[int, ...], np.dtype]]  # shapes and types, by name

ALIGNED = 16  # bytes
_WORD = 8
BEHIND = 3  # steps whose copies may be in flight while the next ones are written, with one stage


def upload(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Copy the arrays to the device as tensors; on a CPU the tensors share the arrays' memory."""
    if device.type != "cuda":
        return [torch.from_numpy(array) for array in arrays]
    places, size = _places([array.nbytes for array in arrays])
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)  # torch keeps it until it has been read
    numbers = host.numpy()
    for place, array in zip(places, arrays, strict=True):
        numbers[place : place + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).ravel()
    there = host.to(device, non_blocking=True)
    kinds = [torch.from_numpy(array[:0]).dtype for array in arrays]
    return [
        there[place : place + array.nbytes].view(kind).view(array.shape)
        for place, array, kind in zip(places, arrays, kinds, strict=True)
    ]


class StagingBuffers:
    """Fields of fixed shapes that each step copies to the device, and tokens that are copied back.

    Both copies are kernel launches and can be captured with a step. Two more fields are `news`, changes of
    the block tables as (cells, blocks) with cell -1 for none, and `tokens`, the sampled tokens.
    """

    def __init__(self, fields: Fields, rows: int, tables: Tensor, steps: int = BEHIND) -> None:
        """`steps`: how many may be launched before the tokens of the first are read."""
        numbers = np.dtype(np.int64)
        fields = {"news": ((2, rows), numbers), **fields, "tokens": ((rows,), numbers)}
        sizes = [int(np.prod(shape)) * kind.itemsize for shape, kind in fields.values()]
        places, size = _places(sizes)
        device = tables.device
        self._rows, self._tables, self._on_gpu = rows, tables, device.type == "cuda"

        def views(piece: Tensor) -> dict[str, Tensor]:
            return {
                name: piece[place : place + bytes_]
                .view(torch.from_numpy(np.empty(0, kind)).dtype)
                .view(shape)
                for (name, (shape, kind)), place, bytes_ in zip(fields.items(), places, sizes, strict=True)
            }

        with timed("host memory of steps"):
            self._pieces = torch.zeros(steps, size, dtype=torch.uint8, pin_memory=self._on_gpu)
        # This copy tells torch which stream uses the pieces, so that it keeps them until the launches end.
        self._there = self._pieces[0].to(device, non_blocking=True, copy=True)
        self._hosts = [views(piece) for piece in self._pieces]
        self._blanks = [{name: view.numpy() for name, view in each.items()} for each in self._hosts]
        self.on_device = views(self._there)
        self._tokens_at = places[-1] // _WORD
        self._at = 0  # the current piece
        # The same counter on the device.
        self._turn = torch.zeros(1, dtype=torch.int64, device=device)
        self._over = [torch.cuda.Event() for _ in self._hosts] if self._on_gpu else []

    def next_fields(self) -> dict[str, np.ndarray]:
        """The fields to fill for the next step. They hold the numbers of an earlier one."""
        if self._over:
            self._over[self._at].synchronize()  # done already, unless steps failed
        return self._blanks[self._at]

    def advance(self) -> Tensor:
        """Call after all launches of a step, including `copy_in` and `copy_out`. Returns its tokens."""
        tokens = self._hosts[self._at]["tokens"]
        if self._over:
            self._over[self._at].record()
        self._at = (self._at + 1) % len(self._hosts)
        return tokens

    def copy_in(self) -> None:
        """Copy the fields from `next_fields` to the device."""
        if self._on_gpu:
            # Imports Triton, which is only installed with a GPU.
            from engine.kernels.triton.kv.staging import copy_in

            pieces, there = self._words()
            copy_in(there, self._tables, pieces, self._turn, self._rows)
        else:
            self._there.copy_(self._pieces[self._turn[0]])
            cells, blocks = self.on_device["news"]
            self._tables.view(-1)[cells[cells >= 0]] = blocks[cells >= 0].int()

    def copy_out(self) -> None:
        """Copy the tokens to the host. The last launch of a step, so that a failed step does not advance."""
        if self._on_gpu:
            from engine.kernels.triton.kv.staging import copy_out

            pieces, there = self._words()
            copy_out(pieces, there, self._turn, self._tokens_at, self._rows)
        else:
            self._hosts[self._turn[0]]["tokens"].copy_(self.on_device["tokens"])
            self._turn.add_(1).remainder_(len(self._hosts))

    def _words(self) -> tuple[Tensor, Tensor]:
        return self._pieces.view(torch.int64), self._there.view(torch.int64)


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """The aligned offset of each part in one buffer, and the total size."""
    places, end = [], 0
    for size in sizes:
        places.append(end)
        end += -(-size // ALIGNED) * ALIGNED
    return places, end
