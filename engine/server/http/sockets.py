"""What both WebSockets do."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any

from fastapi import WebSocket, WebSocketDisconnect


async def sending(socket: WebSocket, messages: AsyncIterator[str]) -> None:
    """Sends until there is no more, or nobody there. What the client says meanwhile is passed over."""

    async def send_all() -> None:
        async for message in messages:
            await socket.send_text(message)
        await socket.close()

    async def listen() -> None:
        while (await socket.receive())["type"] != "websocket.disconnect":
            pass

    await first_of(send_all(), listen())


async def first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Runs all until one is done; the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            with suppress(WebSocketDisconnect):
                task.result()
    finally:
        for task in tasks:
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError, WebSocketDisconnect):
                    await task
