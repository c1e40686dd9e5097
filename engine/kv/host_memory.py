"""Host memory for KV blocks, in slabs. On a GPU machine a thread pins them one after the other."""

from collections.abc import Callable, Iterator, Sequence
from threading import Condition, Thread
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
        self._changed = Condition()  # for what follows
        self._stopped = self._over = False
        self._thread = Thread(target=self._fill, name="host-memory", daemon=True) if background else None
        if self._thread is None:
            self._fill()
        else:
            self._thread.start()

    def parts(self, pairs: Pairs) -> Iterator[tuple[Slab, Pairs]]:
        """Group pairs of (host block, any block) by slab; the host blocks become places in the slab."""
        found: dict[int, list[tuple[int, int]]] = {}
        for host, block in pairs:
            at, place = divmod(host, self._per_slab)
            found.setdefault(at, []).append((place, block))
        return ((self.slabs[at], part) for at, part in found.items())

    def ask(self, least: int = 0) -> int:
        """How many blocks can be used. Waits until there are `least`, unless allocation has ended."""
        if self.ready < least and not self._over:
            with self._changed:
                self._changed.wait_for(lambda: self.ready >= least or self._over)
        return self.ready

    def stop(self) -> None:
        """Stop allocating after the current slab."""
        self._stopped = True

    def clear(self) -> None:
        """Free all slabs, also the current one."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
        self.slabs.clear()

    def _fill(self) -> None:
        try:
            while self.ready < self.size and not self._stopped:
                count = min(self._per_slab, self.size - self.ready)
                with timed("host memory for blocks"):
                    self.slabs.append(self._allocate(count))
                with self._changed:
                    self.ready += count
                    self._changed.notify_all()
        except (RuntimeError, MemoryError) as error:  # pinned memory is scarcer than ordinary memory
            log.warning(
                "not enough host memory for %d blocks, so %d are used: %s", self.size, self.ready, error
            )
            self.size = self.ready
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()
            if self._filled is not None:
                self._filled()
