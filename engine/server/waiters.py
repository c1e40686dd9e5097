"""Readers on the event loop who wait for news."""

import asyncio


class Waiters:
    """Any number of them; each `wake` wakes all who wait at that moment."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, patience: float | None = None) -> bool:
        """Until something is new. False where so many seconds have passed first."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await asyncio.wait_for(waiter, patience)
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(waiter)
        return True
