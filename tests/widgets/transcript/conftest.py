"""All transcript tests run in the Greenwich time zone, on the day of their messages."""

import time
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setattr("minichat.ui.monitor.figures.wall_clock", lambda: 43_300.0)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
