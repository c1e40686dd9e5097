"""What limits loads from the disk tier: reading, the checksum, or the copy to the device.

First each part of it, on one thread, then whole loads by all threads of the tier, from the page cache and
from the disk. `fresh` memory is new for each load, `own` memory comes from the device's blocks, pinned on a
GPU. Then reads alone, several at once (`--threads`), from the disk with and without O_DIRECT: each by its own
thread, or all by one thread with an io_uring. It needs no model: the blocks are those of a cache with a
model's shape. `--disk`: a folder on the disk.
"""

import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.engine.uring import Ring
from engine.api.cache_spec import LayerSpec
from engine.execution.cache_blocks import CacheBlocks, blocks_of
from engine.kv.store import KVStore
from engine.kv.tiers.disk import DiskTier
from engine.kv.tiers.tier import DeviceBlocks
from minichat.bench.harness import Bench, note_all, rounds
from minichat.bench.shapes import COMMON, SHAPES

PART = 2**26  # bytes that a thread of the tier loads at a time
PIECE = 2**21  # bytes of a read by several threads


class Fresh:
    """Blocks of the device, and memory that is new for each load."""

    def __init__(self, blocks: CacheBlocks) -> None:
        self._blocks, self.numbers = blocks, blocks.numbers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blocks, name)

    def buffer(self, count: int, nbytes: int) -> np.ndarray:
        return np.empty((count, nbytes), np.uint8)


def run(
    bench: Bench,
    *,
    shape: str = "8B",
    blocks: int = 512,
    disk: str = ".",
    device: str = "",
    threads: tuple[int, ...] = (1, 4, 8, 16, 32),
) -> None:
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    store = _store(shape, blocks, place)
    make = blocks_of(store, place)
    nbytes = store.nbytes // blocks
    bench.note("a block", nbytes / 1e6, "MB")
    with tempfile.TemporaryDirectory(dir=disk) as folder:
        room = 2 * blocks * nbytes + 2**28
        with closing(DiskTier(Path(folder), room, lambda: nbytes, waiting=room)) as tier:
            names = [sha256(b"%d" % each).digest() for each in range(blocks)]
            began = time.perf_counter()
            tier.store(names, make(tuple(range(blocks)))).result()
            tier.flush()
            bench.note("written", blocks * nbytes / (time.perf_counter() - began) / 1e9, "GB/s")
            parts(bench, make, nbytes, min(blocks, max(1, PART // nbytes)), Path(folder))
            whole(bench, tier, names, make, nbytes, Path(folder))
            reads(bench, Path(folder), threads)


def _store(shape: str, blocks: int, device: torch.device) -> KVStore:
    found: dict[str, Any] = COMMON | SHAPES[shape]
    heads, dim = found["num_key_value_heads"], found["head_dim"]
    spec = LayerSpec(heads=heads, kv_heads=heads, key_dim=dim, value_dim=dim, scale=1.0)
    layers = [spec] * found["num_hidden_layers"]
    made = KVStore(layers, blocks=blocks, block_size=16, host_blocks=0, dtype=torch.bfloat16, device=device)
    for layer in made.layers:
        for tensor in layer.tensors():
            tensor.normal_()
    return made


def parts(
    bench: Bench, make: Callable[[tuple[int, ...]], CacheBlocks], nbytes: int, count: int, folder: Path
) -> None:
    """Gigabytes per second of one thread."""
    target = make(tuple(range(count)))
    own, fresh = target.buffer(count, nbytes), np.zeros((count, nbytes), np.uint8)
    file = max(folder.glob("*.kv"), key=lambda each: each.stat().st_size)

    def read(into: Callable[[], np.ndarray]) -> None:
        rows = into()
        with file.open("rb", buffering=0) as opened:
            for at, row in enumerate(rows):
                os.preadv(opened.fileno(), [row.data], at * nbytes % max(1, file.stat().st_size - nbytes))

    def check() -> None:
        for row in own:
            sha256(row.data).digest()

    works: dict[str, Callable[[], None]] = {
        "read into own memory": partial(read, lambda: own),
        "read into fresh memory": partial(read, lambda: np.empty((count, nbytes), np.uint8)),
        "checksums": check,
        "from own memory to the device": partial(target.write, own),
        "from fresh memory to the device": partial(target.write, fresh),
    }
    contenders = {name: partial(_speed, work, count * nbytes) for name, work in works.items()}
    for name, speeds in rounds(bench, contenders).items():
        bench.note(f"one thread, {name}", speeds, "GB/s")


def whole(
    bench: Bench,
    tier: DiskTier,
    names: Sequence[bytes],
    make: Callable[[tuple[int, ...]], CacheBlocks],
    nbytes: int,
    folder: Path,
) -> None:
    """Gigabytes per second of loads by all threads of the tier."""
    own = make(tuple(range(len(names))))

    def load(blocks: DeviceBlocks, *, cold: bool = False) -> float:
        if cold:
            drop_from_page_cache(folder)
        return _speed(lambda: tier.load(names, blocks).result(), len(names) * nbytes)

    contenders = {
        "fresh memory": partial(load, Fresh(own)),
        "own memory": partial(load, own),
        "own memory, from the disk": partial(load, own, cold=True),
    }
    note_all(bench, "a load", rounds(bench, contenders), "GB/s")


def reads(bench: Bench, folder: Path, threads: Sequence[int]) -> None:
    """Gigabytes per second that threads or rings read from the disk, several pieces of 2 MB at once."""
    pieces = [(file, at) for file in folder.glob("*.kv") for at in range(0, file.stat().st_size, PIECE)]
    flags = {"through the page cache": 0}
    with suppress(AttributeError, OSError):  # neither every system nor every file system has it
        os.close(os.open(pieces[0][0], os.O_RDONLY | os.O_DIRECT))
        flags["with O_DIRECT"] = os.O_DIRECT

    def part(first: int, count: int, flag: int) -> int:
        done = 0
        with closing(mmap.mmap(-1, PIECE)) as memory:  # O_DIRECT needs aligned memory
            for file, at in pieces[first::count]:
                opened = os.open(file, os.O_RDONLY | flag)
                try:
                    done += os.preadv(opened, [memory], at)
                finally:
                    os.close(opened)
        return done

    def speed(count: int, flag: int) -> float:
        drop_from_page_cache(folder)
        with ThreadPoolExecutor(count) as pool:
            began = time.perf_counter()
            done = sum(pool.map(lambda first: part(first, count, flag), range(count)))
            return done / (time.perf_counter() - began) / 1e9

    def ring_speed(count: int, flag: int) -> float:
        drop_from_page_cache(folder)
        with ExitStack() as opened:
            fds = {file: os.open(file, os.O_RDONLY | flag) for file, _ in pieces}
            for fd in fds.values():
                opened.callback(os.close, fd)
            ring, memory = opened.enter_context(closing(Ring(count))), mmap.mmap(-1, count * PIECE)
            began = time.perf_counter()
            done = ring.read([(fds[file], at) for file, at in pieces], memory, PIECE)
            return done / (time.perf_counter() - began) / 1e9

    ways = {"": speed}
    try:
        Ring(1).close()
        ways["io_uring, "] = ring_speed
    except OSError as error:
        print(f"not measured: io_uring ({error})", file=sys.stderr)
    contenders = {
        f"{name}, {how}{count} at once": partial(measure, count, flag)
        for name, flag in flags.items()
        for count in threads
        for how, measure in ways.items()
    }
    for name, speeds in rounds(bench, contenders).items():
        bench.note(f"reads {name}", speeds, "GB/s")


def _speed(work: Callable[[], object], nbytes: int) -> float:
    began = time.perf_counter()
    work()
    return nbytes / (time.perf_counter() - began) / 1e9


def drop_from_page_cache(folder: Path) -> None:
    for file in folder.glob("*.kv"):
        fd = os.open(file, os.O_RDONLY)
        with suppress(OSError):
            os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
