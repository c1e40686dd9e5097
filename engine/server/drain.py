"""Shutdown of a server: new requests are refused, running replies may finish, endless streams stop."""

from collections.abc import Callable

from engine.server.waiters import Waiters


class Drain:
    """Whether shutdown has begun. It begins once, on the event loop."""

    def __init__(self) -> None:
        self.begun = False
        self.running: Callable[[], int] = lambda: 0  # requests that it waits for, once they can arrive
        self._waiters = Waiters()

    def begin(self) -> None:
        self.begun = True
        self._waiters.wake()

    async def wait(self) -> None:
        """Wait until shutdown begins."""
        if not self.begun:
            await self._waiters.wait()
