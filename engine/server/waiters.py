"""Readers on the event loop that wait for new data."""

import asyncio


class Waiters:
    """Any number of waiting readers. `wake` wakes all that are waiting at that moment."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for the next `wake`. Return False if `timeout` seconds pass first."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            async with asyncio.timeout(timeout):  # wait_for may lose a cancellation in Python 3.11
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(waiter)
        return True
