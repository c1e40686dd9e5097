"""Host memory for KV blocks, in slabs. On a GPU machine a thread pins them one after the other.

The driver makes most other calls wait while it pins. So the thread can pause after each slab.
"""

import time
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
        pauses: float | None = None,
    ) -> None:
        """`allocate`: returns a slab with this number of blocks. `filled`: is called after the last one.

        `background`: call both on a thread. `pauses`: begin once blocks are asked for, and pause after each
        slab for this many times as long as it took, unless something waits. None: begin now, without pauses.
        """
        self.size = blocks
        self.ready = 0  # blocks that can be used now
        self.slabs: list[Slab] = []
        self._per_slab, self._allocate, self._filled = max(1, per_slab), allocate, filled
        self._pauses = pauses or 0.0
        self._changed = Condition()  # for what follows
        self._begun = self._stopped = self._over = False
        self._needed = 0  # blocks for which something waits, or has waited
        self._thread = Thread(target=self._fill, name="host-memory", daemon=True) if background else None
        if self._thread is None:
            self._fill()
        elif pauses is None:
            self.ask()

    def parts(self, pairs: Pairs) -> Iterator[tuple[Slab, Pairs]]:
        """Group pairs of (host block, any block) by slab; the host blocks become places in the slab."""
        found: dict[int, list[tuple[int, int]]] = {}
        for host, block in pairs:
            at, place = divmod(host, self._per_slab)
            found.setdefault(at, []).append((place, block))
        return ((self.slabs[at], part) for at, part in found.items())

    def ask(self, least: int = 0) -> int:
        """How many blocks can be used. Waits until there are `least`, unless no more will come."""
        if self._thread is None or self._over:
            return self.ready
        with self._changed:
            if not self._begun:
                self._begun = True
                self._thread.start()
            if self.ready < least:
                self._needed = max(self._needed, least)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self.ready >= least or self._over)
        return self.ready

    def stop(self) -> None:
        """Allocate no more slabs after the current one."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def clear(self) -> None:
        """Free all slabs, also the current one."""
        self.stop()
        if self._begun and self._thread is not None:
            self._thread.join()
        self.slabs.clear()

    def _fill(self) -> None:
        try:
            while self.ready < self.size and not self._stopped:
                count, began = min(self._per_slab, self.size - self.ready), time.monotonic()
                with timed("host memory for blocks"):
                    self.slabs.append(self._allocate(count))
                with self._changed:
                    self.ready += count
                    self._changed.notify_all()
                    if self._thread is not None and self.ready < self.size:
                        pause = self._pauses * (time.monotonic() - began)
                        self._changed.wait_for(lambda: self.ready < self._needed or self._stopped, pause)
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
