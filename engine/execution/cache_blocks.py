"""Copies blocks on a device, and between the device's cache and a tier."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, partial
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from engine.execution.cuda.arrivals import Arrivals
from engine.kernels.driver import copy_rectangles, rectangles
from engine.kernels.places import Places
from engine.kv.host_memory import Pairs
from engine.kv.store import KVStore, Mover, bits, move_blocks
from engine.kv.tiers.tier import CompletedTransfer, Transfer

PIECE = 2**26  # bytes gathered on a GPU at a time
LEAST_RUN = 16  # blocks that are copied without gathering: launching a copy of each tensor takes less time
SwapsBy = Literal["staging", "rectangles"]


class Staging(Protocol):
    """Moves a list of blocks to rows of bytes on the device, or back, a piece at a time."""

    def move(self, first: int, count: int) -> None:
        """Move these blocks of the list to the first `count` rows, or back."""


def mover_on(device: torch.device, swaps: SwapsBy = "rectangles", arrivals: Arrivals | None = None) -> Mover:
    """What copies blocks on a device, to other memory and back; on a GPU without waiting.

    `arrivals`: may launch rectangles by layer.
    """
    if device.type != "cuda":
        return move_blocks
    # Imports Triton, which is only installed with a GPU.
    from engine.kernels.triton.kv.blocks import RowStaging, move

    def moved(sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: Pairs) -> None:
        if targets[0].is_cuda and not _in_rows(sources):
            move(sources, targets, pairs)
            return
        out = not targets[0].is_cuda
        if swaps == "rectangles":
            pairs = swap_runs(sources, targets, pairs, None if out else arrivals)
        if pairs:
            swap(sources, targets, pairs, RowStaging, out=out)

    return moved


def swap_runs(
    sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: Pairs, arrivals: Arrivals | None
) -> Pairs:
    """Copy long runs of blocks that are neighbors on both sides, each tensor by itself. Return the others."""
    found, rest = rectangles(Places.of(sources), Places.of(targets), pairs, LEAST_RUN)
    if arrivals is None or not arrivals.collect(found):
        copy_rectangles(found, torch.cuda.current_stream().cuda_stream)
    return rest


def swap(
    sources: Sequence[Tensor],
    targets: Sequence[Tensor],
    pairs: Pairs,
    staging: Callable[..., Staging],
    *,
    out: bool,
) -> None:
    """Copy blocks to host memory (`out`), or from there or another GPU, by the GPU's copy engine: unlike a
    kernel, it takes next to nothing from the steps. Blocks are gathered on the device, so that those that are
    neighbors in the other memory are one copy; all layers of a block are contiguous there.
    """
    inner, outer = (sources, targets) if out else (targets, sources)
    rows = _rows(outer)
    found = sorted((pair[out], pair[not out]) for pair in pairs)  # (place in the other memory, block)
    most = max(1, min(len(found), PIECE // rows.shape[1]))
    staged = torch.empty((most, rows.shape[1]), dtype=torch.uint8, device=inner[0].device)
    # Takes a while: the first copy begins before it.
    pieces = cache(lambda: staging(inner, staged, [block for _, block in found], out=out))
    for first in range(0, len(found), most):
        places = [place for place, _ in found[first : first + most]]
        if out:
            pieces().move(first, len(places))
        for at, place, count in _runs(places):
            here, there = rows[place : place + count], staged[at : at + count]
            (here if out else there).copy_(there if out else here, non_blocking=True)
        if not out:
            pieces().move(first, len(places))


class PlainStaging:
    """Copies blocks with plain torch, as a reference for the GPU's staging kernels."""

    def __init__(self, tensors: Sequence[Tensor], rows: Tensor, blocks: Sequence[int], *, out: bool) -> None:
        self._sides, self._blocks, self._out = (tensors, _like(tensors, rows)), blocks, out

    def move(self, first: int, count: int) -> None:
        pairs = list(zip(self._blocks[first : first + count], range(count), strict=True))
        inner, outer = self._sides
        if self._out:
            move_blocks(inner, outer, pairs)
        else:
            move_blocks(outer, inner, [(row, block) for block, row in pairs])


def _rows(tensors: Sequence[Tensor]) -> Tensor:
    """The memory behind all of these tensors: [blocks, bytes per block]."""
    first = tensors[0]
    assert _in_rows(tensors), "the layers of a block are not contiguous"
    size = first.stride(0) * first.element_size()
    whole = torch.empty(0, dtype=torch.uint8, device=first.device).set_(first.untyped_storage())
    return whole.as_strided((len(first), size), (size, 1), first.storage_offset() * first.element_size())


def _in_rows(tensors: Sequence[Tensor]) -> bool:
    """Whether all layers of a block are contiguous, as in any memory other than the cache's own."""
    return tensors[0].stride(0) * tensors[0].element_size() == sum(each[0].nbytes for each in tensors)


def _like(tensors: Sequence[Tensor], rows: Tensor) -> list[Tensor]:
    """Divide rows of bytes among tensors like these."""
    ends = np.cumsum([each[0].nbytes for each in tensors]).tolist()
    return [
        rows[:, begin:end].view(each.dtype).view(len(rows), *each.shape[1:])
        for each, begin, end in zip(tensors, [0, *ends], ends, strict=False)
    ]


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Runs of neighbors: the index of the first, its place, and how many they are."""
    begins = [at for at, place in enumerate(places) if not at or place != places[at - 1] + 1]
    for begin, end in zip(begins, [*begins[1:], len(places)], strict=True):
        yield begin, places[begin], end - begin


def blocks_of(
    store: KVStore, device: torch.device, arrivals: Arrivals | None = None
) -> Callable[[tuple[int, ...]], "CacheBlocks"]:
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    return lambda numbers: CacheBlocks(store, numbers, device, stream, arrivals)


class OnStream:
    """Work launched on the current GPU stream."""

    def __init__(self, works: Sequence[Callable[[], None]], arrivals: Arrivals | None = None) -> None:
        """`arrivals`: may launch the last work by layer."""
        *first, last = works
        self._start = self._last = _mark()
        for work in first:
            work()
            self._last = _mark()
        self._by_layer = None
        if arrivals is None:
            last()
        elif arrivals.launch(last):
            self._by_layer = arrivals
        self._end = _mark()
        self._works = works  # keep what the launches read alive

    def done(self) -> bool:
        return self._end.query()

    def result(self) -> float:
        self._end.synchronize()
        return self._start.elapsed_time(self._end) / 1e3

    def follow(self) -> bool:
        """Have the current stream, or each layer of the next step, wait if the last work has begun."""
        if begun := self._last.query():
            if self._by_layer is None:
                self._end.wait()
            else:
                self._by_layer.follow(self._end)
        return begun


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class CacheBlocks:
    """Blocks of the cache. Copied synchronously on a CPU, on a separate stream on a GPU."""

    def __init__(
        self,
        store: KVStore,
        numbers: tuple[int, ...],
        device: torch.device,
        stream: torch.cuda.Stream | None,
        arrivals: Arrivals | None = None,
    ) -> None:
        """`arrivals`: may launch loads by layer, if no step is in flight."""
        self.numbers = numbers
        self._store, self._device, self._stream = store, device, stream
        self._arrivals = None
        if stream is not None:
            steps = torch.cuda.current_stream(device)
            self._arrivals = arrivals if steps.query() else None
            stream.wait_stream(steps)

    @cached_property
    def _tensors(self) -> list[Tensor]:
        return [bits(tensor) for layer in self._store.memory for tensor in layer.tensors()]

    def read(self) -> Callable[[], np.ndarray]:
        sizes = [tensor[0].nbytes for tensor in self._tensors]
        if self._stream is None:
            with torch.inference_mode():
                data = self._gathered(slice(None), sizes).numpy()
            return lambda: data
        return partial(self._read_from_gpu, self._stream, sizes)

    @torch.inference_mode()
    def _read_from_gpu(self, stream: torch.cuda.Stream, sizes: Sequence[int]) -> np.ndarray:
        """Through pinned memory of one piece, which torch keeps for the next."""
        data = np.empty((len(self.numbers), sum(sizes)), np.uint8)
        for piece in self._pieces(0, len(data), sum(sizes)):
            with torch.cuda.stream(stream):
                gathered = self._gathered(piece, sizes)
                host = torch.empty(gathered.shape, dtype=torch.uint8, pin_memory=True)
                host.copy_(gathered, non_blocking=True)
                arrived = torch.cuda.Event()
                arrived.record()
            arrived.synchronize()
            data[piece] = host.numpy()
        return data

    def buffer(self, count: int, nbytes: int) -> np.ndarray:
        """Pinned on a GPU. Torch keeps such memory, so only the first loads wait for pages."""
        if self._stream is None:
            return np.empty((count, nbytes), np.uint8)
        with torch.cuda.device(self._device):
            return torch.empty((count, nbytes), dtype=torch.uint8, pin_memory=True).numpy()

    @torch.inference_mode()
    def write(self, data: np.ndarray, at: int = 0) -> None:
        host = torch.from_numpy(data)
        if self._stream is None:
            self._spread(slice(at, at + len(data)), host)
            return
        host = host.pin_memory()  # the same memory if it came from `buffer`
        with torch.cuda.stream(self._stream):
            for piece in self._pieces(at, len(data), host.shape[1]):
                part = host[piece.start - at : piece.stop - at]
                self._spread(piece, part.to(self._device, non_blocking=True))
            arrived = torch.cuda.Event()
            arrived.record()
        arrived.synchronize()

    @torch.inference_mode()
    def move(self, *works: Callable[[], None]) -> Transfer:
        if self._stream is None:
            began = time.monotonic()
            for work in works:
                work()
            return CompletedTransfer(time.monotonic() - began)
        with torch.cuda.stream(self._stream):
            try:
                return OnStream(works, self._arrivals)
            except BaseException:
                self._stream.synchronize()  # of the blocks, which are free now, some may be in a copy
                raise

    def _pieces(self, first: int, count: int, size: int) -> Iterator[slice]:
        most, end = max(1, PIECE // size), first + count
        return (slice(at, min(at + most, end)) for at in range(first, end, most))

    def _at(self, piece: slice) -> Tensor:
        return torch.tensor(self.numbers[piece], device=self._device)

    def _gathered(self, piece: slice, sizes: Sequence[int]) -> Tensor:
        """[blocks, bytes]: all tensors of each block, concatenated."""
        at = self._at(piece)
        rows = (tensor[at].view(len(at), -1).view(torch.uint8) for tensor in self._tensors)
        return torch.cat(list(rows), 1)

    def _spread(self, piece: slice, data: Tensor) -> None:
        at, begin = self._at(piece), 0
        for tensor in self._tensors:
            end = begin + tensor[0].nbytes
            part = data[:, begin:end].contiguous().view(tensor.dtype)
            tensor[at] = part.view(len(at), *tensor.shape[1:])
            begin = end
