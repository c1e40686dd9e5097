"""Engines on their threads, closed when their test ends."""

from collections.abc import Callable, Iterator

import pytest

from engine.host.thread import EngineThread
from engine.serving.engine import Engine

Open = Callable[[Engine], EngineThread]


@pytest.fixture
def opened() -> Iterator[Open]:
    hosts: list[EngineThread] = []

    def open(engine: Engine) -> EngineThread:
        hosts.append(EngineThread(engine))
        return hosts[-1]

    yield open
    for host in hosts:
        host.close()
