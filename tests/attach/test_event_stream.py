"""The events of a remote engine reach the screen from the moment it is connected."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from engine.api.events import Finished, FirstToken
from engine.api.params import SamplingParams
from minichat.clients.link import Link
from minichat.clients.sse import ServerEvent
from tests.app.conftest import run, whole
from tests.attach.conftest import attached
from tests.server.conftest import Served


@run
async def test_events_before_their_stream_has_opened_are_reported(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow, opened = Link.follow, asyncio.Event()

    async def late(link: Link, path: str, last: Callable[[], str]) -> AsyncIterator[ServerEvent]:
        if path == "/events":
            await opened.wait()
        async for message in follow(link, path, last):
            yield message

    monkeypatch.setattr(Link, "follow", late)
    async with attached(served) as it:
        await whole(await it.backend.submit("tell me", SamplingParams(max_tokens=2)))
        opened.set()
        await it.until(lambda: it.events_of(Finished))
        assert it.events_of(FirstToken)
