"""Screens attached to remote engines: real servers on real sockets, through a link that can be cut."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.api.events import Delta, Event
from minichat.clients.address import Address
from minichat.clients.protocol import LinkBack, LinkLost
from minichat.clients.remote import Home, RemoteBackend
from tests.attach.proxy import Proxy
from tests.server.conftest import KEY, Served, dry, served, serving, slow
from tests.waiting import until

__all__ = ["served", "slow"]


@dataclass
class Attached:
    """A remote backend, the proxy in front of its server, and the events it has reported."""

    backend: RemoteBackend
    proxy: Proxy
    received: list[Event] = field(default_factory=list)

    def receive(self, events: Sequence[Event]) -> None:
        self.received.extend(events)

    def events_of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.received if isinstance(event, kind)]

    async def until(self, holds: Callable[[], object]) -> None:
        await until(holds)

    async def lost(self) -> None:
        await self.until(lambda: self.events_of(LinkLost))

    async def back(self) -> LinkBack:
        await self.until(lambda: self.events_of(LinkBack))
        event: LinkBack = self.events_of(LinkBack)[-1]
        return event


def no_progress(done: int, total: int) -> None:
    """Ignore loading progress."""


def text_of(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


@asynccontextmanager
async def attached(server: Served, home: Home | None = None) -> AsyncIterator[Attached]:
    proxy = Proxy(server.port)
    backend = RemoteBackend(Address(proxy.url, key=KEY), home)
    one = Attached(backend, proxy)
    backend.subscribe(one.receive)
    try:
        await backend.load(no_progress)
        yield one
    finally:
        await backend.detach()
        proxy.close()


@pytest.fixture
def own() -> Iterator[Served]:
    """A server for one test, which shuts it down."""
    with serving(dry(rate=50), drain=0.2) as one:
        yield one
