"""Between the engine's threads and the event loop."""

import asyncio
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import suppress
from typing import TypeVar

from engine.api.events import Delta
from engine.host.handover import call_on
from minichat.clients.protocol import Turn

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Runs blocking work in a thread of its own.

    A daemon, unlike the loop's own pool: whoever quits does not wait for a model that still loads.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:  # it belongs to whoever waits
            failure = error
        call_on(loop, settle, result, failure)

    threading.Thread(target=run, name="minichat-call", daemon=True).start()
    return await done


async def gathered(stream: AsyncIterable[Delta], turn: Turn) -> AsyncIterator[list[Delta]]:
    """Deltas as they gather between two turns.

    Between two turns nobody iterates the stream, so that the engine's thread wakes nobody for each token.
    """
    loop = asyncio.get_running_loop()
    while True:
        batch: list[Delta] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as patience:
                async for delta in stream:
                    if not batch:
                        patience.reschedule(
                            loop.time()
                        )  # wait for the first, then take what is there already
                    batch.append(delta)
        yield batch
        if batch[-1].last:
            return
        await turn()
