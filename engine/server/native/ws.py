"""/ws: generation token by token, with updates and cancels while it runs (docs/server.md)."""

import asyncio
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic import Field

from engine.api import commands
from engine.api.errors import EngineError
from engine.api.wire import VERSION, changes_from_json, encode_delta, params_from_json
from engine.server.config import MAX_CHOICES
from engine.server.generation import Generation
from engine.server.http.bodies import off_loop, parse_json
from engine.server.http.connection import key_of, state_of
from engine.server.http.errors import ApiError, from_engine, quoted
from engine.server.http.sockets import first_of
from engine.server.http.sse import encoded
from engine.server.schema import MAX_REPLY_PREFIX, AdapterName, AnyPrompt, Ordered, Strict, TokenIds, parsed

router = APIRouter()

Name = Annotated[str, Field(min_length=1, max_length=64)]


class GenerateMessage(Ordered):
    type: Literal["generate"]
    id: Name
    prompt: AnyPrompt
    adapter: AdapterName = ""
    params: dict[str, Any] = Field(default_factory=dict)
    said: TokenIds = Field(default_factory=list, max_length=MAX_REPLY_PREFIX)


class UpdateMessage(Strict):
    type: Literal["update"]
    id: Name
    changes: dict[str, Any] = Field(min_length=1)


class CancelMessage(Strict):
    type: Literal["cancel"]
    id: Name


_KINDS: dict[str, type[Strict]] = {
    "generate": GenerateMessage,
    "update": UpdateMessage,
    "cancel": CancelMessage,
}


@router.websocket("/ws")
async def generation(socket: WebSocket) -> None:
    await socket.accept()
    session = GenerationSocket(socket)
    try:
        await first_of(session.listen(), session.stop_when_draining())
    finally:
        await session.close()


class GenerationSocket:
    """One client's socket. Several replies may run at once, each under an id chosen by the client."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket, self._state = socket, state_of(socket)
        self._runs: dict[str, Generation] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._handling = asyncio.Lock()  # held from the arrival of a message to its answer

    async def listen(self) -> None:
        while (message := await self._socket.receive())["type"] != "websocket.disconnect":
            async with self._handling:
                await self._answer(message.get("text"))

    async def stop_when_draining(self) -> None:
        """At shutdown, let replies that start or run finish, then close the socket."""
        await self._state.drain.wait()
        while await self._started():
            await asyncio.wait(self._tasks)
        await self._socket.close(1001, "the server is shutting down")

    async def _started(self) -> bool:
        """Return whether replies run, once the current message is answered."""
        async with self._handling:
            return bool(self._tasks)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for run in self._runs.values():  # its client left before it learned of the start
            run.close()

    async def _answer(self, text: str | None) -> None:
        name = None
        try:
            if text is None:
                raise ApiError(400, "messages must be text, got a binary one")
            value = await off_loop(self._socket, partial(parse_json, text), len(text))
            if isinstance(value, dict) and isinstance(value.get("id"), str):
                name = value["id"][:64]
            await self._handle(value)
        except ApiError as error:
            await self._send_error(name, error)
        except EngineError as error:
            await self._send_error(name, from_engine(error))

    async def _handle(self, value: Any) -> None:
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in _KINDS:
            raise ApiError(400, f"type must be one of {', '.join(_KINDS)}, got {quoted(kind)}", param="type")
        message = await off_loop(self._socket, lambda: parsed(_KINDS[kind], value))
        state = self._state
        match message:
            case GenerateMessage():
                await self._generate(message)
            case UpdateMessage():
                changes = await off_loop(self._socket, lambda: changes_from_json(message.changes))
                request = self._running(message.id)
                await state.engine.send(commands.Update(request, changes))
                await self._send("updated", message.id, changes=sorted(changes))
            case CancelMessage():
                state.engine.abort([self._running(message.id)])

    async def _generate(self, message: GenerateMessage) -> None:
        if message.id in self._runs:
            raise ApiError(409, f"id {message.id!r} is already in use by a running reply", param="id")
        if len(self._runs) >= MAX_CHOICES:
            raise ApiError(
                429, f"a socket may run at most {MAX_CHOICES} replies at once", code="rate_limit_exceeded"
            )
        params = await off_loop(self._socket, lambda: params_from_json(message.params))
        run = self._state.run(
            key_of(self._socket),
            [message.prompt],
            params,
            urgency=message.urgency,
            reply_prefix=message.said,
            adapter=message.adapter,
        )
        await run.start()
        self._runs[message.id] = run
        await self._send("started", message.id, request=run.requests[0], prompt_tokens=run.usage.prompt)
        task = asyncio.get_running_loop().create_task(self._send_replies(message.id, run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_replies(self, name: str, run: Generation) -> None:
        try:
            async for batch in run:
                for _, deltas in batch:
                    await self._send("deltas", name, deltas=[encode_delta(delta) for delta in deltas])
            del self._runs[name]
            await self._send("done", name, usage=run.usage.record())
        except WebSocketDisconnect:
            pass  # listen() sees the disconnect, too
        finally:
            run.close()
            self._runs.pop(name, None)

    def _running(self, name: str) -> int:
        if name not in self._runs:
            raise ApiError(404, f"no reply with id {name!r} is running on this socket", param="id")
        return self._runs[name].requests[0]

    async def _send(self, kind: str, name: str, **more: Any) -> None:
        await self._socket.send_text(encoded({"v": VERSION, "type": kind, "id": name, **more}).decode())

    async def _send_error(self, name: str | None, error: ApiError) -> None:
        self._state.metrics.rejected(error)
        message = {"v": VERSION, "type": "error", "id": name, **error.record()}
        await self._socket.send_text(encoded(message).decode())
