"""Work for a client, which ends when the client disconnects."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
CLIENT = "minichat.client"  # the entry of an ASGI scope that holds its Client


class Client:
    """The client of one request. Its connection calls `leave`: a task that waits for that, in each request,
    would take a tenth of a short request's time.
    """

    def __init__(self, listen: Callable[[], None] = lambda: None) -> None:
        """`listen`: called before work for the client, so that the connection notices when it leaves."""
        self._listen = listen
        self._gone = False
        self._limit: asyncio.Timeout | None = None  # of the work that runs

    def leave(self) -> None:
        """Cancel the work in the next turn of the loop: the work itself may call this, as it writes."""
        if not self._gone:
            self._gone = True
            if self._limit is not None:
                self._limit.reschedule(0.0)

    async def waits_for(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of `work`. If the client leaves first, cancel the work and return None."""
        self._listen()
        limit = asyncio.timeout_at(0.0 if self._gone else None)
        try:
            async with limit:
                self._limit = limit
                try:
                    return await work
                finally:
                    self._limit = None
        except TimeoutError:
            if not limit.expired():  # an error of the work
                raise
        return None


async def unless_gone(scope: Mapping[str, Any], receive: Any, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`. If the client disconnects first, cancel the work and return None."""
    client: Client | None = scope.get(CLIENT)
    if client is not None:
        return await client.waits_for(work)
    client = Client()  # the server reports a disconnect only through `receive`
    watching = asyncio.ensure_future(_watch(receive, client))
    try:
        return await client.waits_for(work)
    finally:
        if not watching.done():
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching


async def _watch(receive: Any, client: Client) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    client.leave()
