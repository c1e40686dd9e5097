"""The end of a server: nothing new comes in, what runs may finish, and what goes on for ever stops."""

import asyncio


class Drain:
    """Begins once, on the event loop."""

    def __init__(self) -> None:
        self.begun = False
        self._waiters: set[asyncio.Event] = set()

    def begin(self) -> None:
        self.begun = True
        for waiter in self._waiters:
            waiter.set()

    async def wait(self) -> None:
        """Until it begins."""
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        try:
            if not self.begun:
                await waiter.wait()
        finally:
            self._waiters.discard(waiter)
