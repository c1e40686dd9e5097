"""Polls the engine while it works and is watched. When idle it has no timer."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from engine.api.errors import EngineDead
from engine.api.snapshot import Snapshot, TierView
from minichat.clients.protocol import Backend
from minichat.shell.interpreter import tidy

_SLOWEST, _FASTEST = 0.5, 10.0  # snapshots per second, as in the settings
_SETTLE = 0.1  # seconds that a tier has to look for what other programs have stored
_PATIENCE = 5.0  # seconds without an answer after which the shown figures are old


class SnapshotPoller:
    """Calls `show` with a snapshot at each poll. The last one shows the idle engine. Calls `late` with True
    when an answer is overdue, and with False when it is there.
    """

    def __init__(
        self,
        backend: Backend,
        show: Callable[[Snapshot], None],
        watched: Callable[[], bool],
        rate: float,
        late: Callable[[bool], None] = lambda on: None,
    ) -> None:
        self.rate = rate
        self._backend, self._show, self._watched, self._late = backend, show, watched, late
        self._task: asyncio.Task[None] | None = None
        self._woken = False

    @property
    def resting(self) -> bool:
        """Whether it takes no snapshots until it is woken."""
        return self._task is None or self._task.done()

    def wake(self) -> None:
        """Start polling: something has started, or a panel became visible."""
        self._woken = True
        if self.resting:
            self._task = asyncio.create_task(self._poll(), name="poller")

    def refresh(self, shown: tuple[TierView, ...]) -> None:
        """Wake if another program has changed what the tiers hold. Else the idle engine's figures stay."""
        if shown and self.resting and self._watched():
            self._woken = False
            self._task = asyncio.create_task(self._refresh(shown), name="poller")

    def change_rate(self, by: int) -> float:
        """Double the rate for each positive step, halve it for each negative one. Return the new rate."""
        self.rate = min(max(self.rate * 2**by, _SLOWEST), _FASTEST)
        return self.rate

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _refresh(self, shown: tuple[TierView, ...]) -> None:
        with suppress(EngineDead):
            await self._asked()  # has the tiers look
            await asyncio.sleep(_SETTLE)
            if (await self._asked()).tiers == shown and not self._woken:
                return
        await self._poll()

    async def _poll(self) -> None:
        ran = False
        with suppress(EngineDead):
            while self._watched():
                self._woken = False
                snapshot = await self._asked()
                self._show(snapshot)
                if not quiet(snapshot):
                    ran = True
                elif not self._woken:
                    if ran:
                        tidy()
                    return
                await asyncio.sleep(1 / self.rate)

    async def _asked(self) -> Snapshot:
        overdue = asyncio.get_running_loop().call_later(_PATIENCE, self._late, True)
        try:
            return await self._backend.snapshot()
        finally:
            overdue.cancel()
            self._late(False)


def quiet(snapshot: Snapshot) -> bool:
    """Whether nothing runs and the rates have dropped to zero."""
    return not snapshot.requests and not snapshot.rates.decode and not snapshot.rates.prefill
