"""Parser of server-sent events."""

from collections.abc import AsyncIterator
from typing import NamedTuple


class ServerEvent(NamedTuple):
    """One event of a stream."""

    kind: str
    id: str
    data: bytes


async def messages(chunks: AsyncIterator[bytes]) -> AsyncIterator[ServerEvent]:
    """Yield the events of a streamed body. An incomplete event at a cut is dropped."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n\n")
        for each in whole:
            message = _message(each)
            if message.kind:
                yield message


def _message(text: bytes) -> ServerEvent:
    """Parse an event. Comments, which only keep the connection alive, have no kind."""
    kind, id, data = "", "", b""
    for line in text.split(b"\n"):
        name, _, value = line.partition(b": ")
        if name == b"data":
            data = value
        elif name == b"event":
            kind = value.decode()
        elif name == b"id":
            id = value.decode()
    return ServerEvent(kind, id, data)
