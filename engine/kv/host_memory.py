"""Host memory for KV blocks, in slabs. On a GPU machine a thread pins them one after the other."""

from collections.abc import Callable, Iterator, Sequence
from threading import Thread
from typing import Generic, TypeVar

from engine.api.events import log
from engine.timeline import timed

Pairs = Sequence[tuple[int, int]]  # (from block, to block)
Slab = TypeVar("Slab")


class HostMemory(Generic[Slab]):
    """Blocks become usable slab by slab. If memory runs out, there are as many as were allocated."""

    def __init__(
        self,
        blocks: int,
        per_slab: int,
        allocate: Callable[[int], Slab],
        filled: Callable[[], None] | None = None,
        *,
        background: bool = False,
    ) -> None:
        """`allocate`: returns a slab with this number of blocks. `filled`: is called after the last one.

        `background`: call both on a thread.
        """
        self.size = blocks
        self.ready = 0  # blocks that can be used now
        self.slabs: list[Slab] = []
        self._per_slab, self._allocate, self._filled = max(1, per_slab), allocate, filled
        self._stopped = False
        self._thread = Thread(target=self._fill, name="host-memory", daemon=True) if background else None
        if self._thread is not None:
            self._thread.start()
        else:
            self._fill()

    def parts(self, pairs: Pairs) -> Iterator[tuple[Slab, Pairs]]:
        """Group pairs of (host block, any block) by slab; the host blocks become places in the slab."""
        found: dict[int, list[tuple[int, int]]] = {}
        for host, block in pairs:
            at, place = divmod(host, self._per_slab)
            found.setdefault(at, []).append((place, block))
        return ((self.slabs[at], part) for at, part in found.items())

    def wait(self) -> None:
        """Wait until all blocks can be used, or memory has run out."""
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """Allocate no more slabs after the current one."""
        self._stopped = True

    def _fill(self) -> None:
        try:
            while self.ready < self.size and not self._stopped:
                count = min(self._per_slab, self.size - self.ready)
                with timed("host memory for blocks"):
                    self.slabs.append(self._allocate(count))
                self.ready += count
        except (RuntimeError, MemoryError) as error:  # pinned memory is scarcer than ordinary memory
            log.warning(
                "not enough host memory for %d blocks, so %d are used: %s", self.size, self.ready, error
            )
            self.size = self.ready
        finally:
            if self._filled is not None:
                self._filled()
