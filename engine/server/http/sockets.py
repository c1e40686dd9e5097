"""Helpers for both WebSocket routes."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any

from fastapi import WebSocket, WebSocketDisconnect


async def sending(socket: WebSocket, messages: AsyncIterator[str]) -> None:
    """Send all messages, or stop when the client disconnects. Messages from the client are ignored."""

    async def send_all() -> None:
        async for message in messages:
            await socket.send_text(message)
        await socket.close()

    async def listen() -> None:
        while (await socket.receive())["type"] != "websocket.disconnect":
            pass

    await first_of(send_all(), listen())


async def first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Run all until one is done, then cancel the others."""
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
