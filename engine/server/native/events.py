"""The engine's events as a stream, over HTTP and over a WebSocket."""

from collections.abc import AsyncIterator

from fastapi import APIRouter, Query, Request, WebSocket
from fastapi.responses import Response

from engine.server.http import sse
from engine.server.http.connection import state_of
from engine.server.http.sockets import sending
from engine.server.native.event_history import Note
from engine.server.schema import STREAM, openapi_answers

router = APIRouter()

Every = Query(None, alias="snapshots", ge=0.05, le=3600, description="Seconds between two snapshots.")


@router.get("/events", response_class=Response, responses=openapi_answers(STREAM))
async def events(request: Request, every: float | None = Every) -> Response:
    """Stream the engine's events. `Last-Event-ID` resumes after a disconnect."""
    follow = state_of(request).events.follow(request.headers.get("last-event-id"), every)
    return sse.EventStream(_lines(follow), lambda: None)


async def _lines(notes: AsyncIterator[Note]) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    async for note in notes:
        if not note.kind:
            yield sse.PULSE
            continue
        id = f"id: {note.id}\n" if note.id else ""
        yield f"{id}event: {note.kind}\ndata: ".encode() + note.data + b"\n\n"


@router.websocket("/ws/events")
async def ws_events(socket: WebSocket, every: float | None = Every, last: str | None = None) -> None:
    """Stream the events over a WebSocket, one JSON object per message."""
    await socket.accept()
    notes = state_of(socket).events.follow(last, every)
    await sending(socket, _messages(notes))


async def _messages(notes: AsyncIterator[Note]) -> AsyncIterator[str]:
    async for note in notes:
        if note.kind:  # WebSockets have their own pings
            id = f'"id":"{note.id}",' if note.id else ""
            yield f'{{"type":"{note.kind}",{id}"data":{note.data.decode()}}}'
