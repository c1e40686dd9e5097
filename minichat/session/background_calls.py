"""Calls to the engine that no caller waits for."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from engine.api.errors import EngineDead, EngineError, UnknownRequest
from minichat.session.decoding import in_words

Request = Coroutine[Any, Any, None]


class BackgroundCalls:
    """Sends calls in the background. Errors about an ended request or engine are ignored."""

    def __init__(self) -> None:
        self._sent: set[asyncio.Task[None]] = set()
        self._order = asyncio.Lock()

    def send(self, request: Request) -> None:
        async def ask() -> None:
            with suppress(UnknownRequest, EngineDead):
                await request

        self._keep(ask())

    def send_in_order(
        self, request: Request, refused: Callable[[str], None], accepted: Callable[[], None]
    ) -> None:
        """Send after all earlier calls, so that the last change wins."""

        async def ask() -> None:
            async with self._order:
                try:
                    await request
                except (UnknownRequest, EngineDead):
                    return
                except EngineError as error:
                    refused(in_words(error))
                else:
                    accepted()

        self._keep(ask())

    def _keep(self, request: Request) -> None:
        task = asyncio.create_task(request)
        self._sent.add(task)
        task.add_done_callback(self._sent.discard)
