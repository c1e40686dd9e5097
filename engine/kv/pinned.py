"""Host memory that is pinned while torch is imported.

The driver pins a few gigabytes a second, and most of its other calls wait until it has pinned a piece. After
the import, each allocation, copy and kernel of a start would wait for that. During the import there are none.
But it maps memory, which has to wait as well while the driver allocates pages. So the pages are written to
before the driver pins them: pages that exist are pinned at once.
"""

import ctypes
import mmap
import weakref
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from engine.main_memory import free_host_memory
from engine.timeline import timed

if TYPE_CHECKING:
    import numpy as np

    from engine.api.config import EngineConfig

SLAB = 2**28  # bytes pinned at a time, about a tenth of a second
MOST = 2 * 2**30  # bytes of host memory for blocks on a GPU machine, unless kv_host asks for more
SHARE = 0.25  # of the free main memory, for the same
_PORTABLE = 1  # a flag: pinned for all of the process's contexts
_HUGE = 2**21  # bytes of a huge page, which is pinned at once


def bytes_ahead(config: "EngineConfig") -> int:
    """How much an engine on a GPU will pin in any case, before its model is known."""
    if config.ranks > 1 or config.host_blocks is not None or config.kv_budget is not None:
        return 0
    return MOST if config.kv_host is None else min(round(config.kv_host * 1e9), MOST)


def blocks_ahead(nbytes: int, each: int) -> int:
    """How many blocks of `each` bytes fit, in whole slabs: the rest of one would be pinned beside a start."""
    per_slab = SLAB // each
    return nbytes // SLAB * per_slab if per_slab and nbytes >= SLAB else nbytes // each


class PinnedAhead:
    """Slabs of pinned memory that nothing uses yet. A slab whose last array is gone can be taken again."""

    def __init__(self) -> None:
        self._gate = Lock()
        self._free: list[int] = []  # addresses
        # By the address of the slab in it. To be kept while it is pinned: if it is unmapped before, the
        # driver reads and writes other memory in its place later, and fails where new memory has its address.
        self._mapped: dict[int, mmap.mmap] = {}
        self._thread: Thread | None = None
        self._cuda: Any = None
        self._context: ctypes.c_void_p | None = None
        self.nbytes = 0  # pinned so far

    def begin(self, cuda: Any, context: ctypes.c_void_p, nbytes: int) -> None:
        """Pin at most `nbytes`, on another thread. `cuda`: the driver's library. Once per process."""
        self._cuda, self._context = cuda, context
        nbytes = min(nbytes, int(free_host_memory() * SHARE))
        self._thread = Thread(target=self._pin, args=(nbytes // SLAB,), name="pinned", daemon=True)
        self._thread.start()

    def take(self, nbytes: int) -> "np.ndarray | None":
        """Return bytes of a slab. None: they do not fit, or all slabs are used."""
        if self._thread is None or nbytes > SLAB:
            return None
        self._thread.join()
        with self._gate:
            if not self._free:
                return None
            address = self._free.pop()
        import numpy as np

        slab = (ctypes.c_uint8 * nbytes).from_address(address)
        weakref.finalize(slab, self._free.append, address).atexit = False  # all arrays over it hold it
        return np.frombuffer(memoryview(slab), np.uint8)

    def give_back(self) -> None:
        """Free the slabs that nothing uses."""
        if self._thread is None:
            return
        self._thread.join()
        free = []
        with self._gate:
            while self._free:  # one by one: arrays that go on other threads add to it meanwhile
                free.append(self._free.pop())
        if free and not self._cuda.cuCtxSetCurrent(self._context):
            for address in free:
                if not self._cuda.cuMemHostUnregister(ctypes.c_void_p(address)):
                    self.nbytes -= SLAB
                    del self._mapped[address]

    def _pin(self, slabs: int) -> None:
        if self._cuda.cuCtxSetCurrent(self._context):
            return
        for _ in range(slabs):
            try:
                with timed("host memory pinned"):
                    mapped, address = _mapped()
                    pages = ctypes.c_void_p(address), ctypes.c_size_t(SLAB)
                    error = self._cuda.cuMemHostRegister_v2(*pages, _PORTABLE)
            except OSError:
                return  # what is missing is allocated later, and reported then
            if error:
                return
            self._mapped[address] = mapped
            self._free.append(address)
            self.nbytes += SLAB


def _mapped() -> tuple[mmap.mmap, int]:
    """Memory whose pages are there, huge ones if the system has them, and the address of a slab in it."""
    mapped = mmap.mmap(-1, SLAB + _HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    address = -(-ctypes.addressof(ctypes.c_char.from_buffer(mapped)) // _HUGE) * _HUGE
    ctypes.memset(address, 0, SLAB)  # without the GIL
    return mapped, address


pinned_ahead = PinnedAhead()  # of this process
