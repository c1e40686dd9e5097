"""The end of a server: nothing new comes in, what runs may finish, and what goes on for ever stops."""

from engine.server.waiters import Waiters


class Drain:
    """Begins once, on the event loop."""

    def __init__(self) -> None:
        self.begun = False
        self._waiters = Waiters()

    def begin(self) -> None:
        self.begun = True
        self._waiters.wake()

    async def wait(self) -> None:
        """Until it begins."""
        if not self.begun:
            await self._waiters.wait()
