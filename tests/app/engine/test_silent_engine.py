"""An engine that takes long to answer, as in a long step, or for good."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from engine.api.snapshot import Snapshot
from minichat.clients.fake import FakeBackend
from minichat.ui import snapshot_poller
from tests.app.conftest import run, snapshot
from tests.attach.test_screen import back, lost
from tests.cases import SIZES


class Silent(FakeBackend):
    """Answers while `speaks` is set."""

    def __init__(self) -> None:
        super().__init__([snapshot(running=(1, 2))])
        self.speaks = asyncio.Event()
        self.speaks.set()

    async def snapshot(self) -> Snapshot:
        await self.speaks.wait()
        return await super().snapshot()


@run
@pytest.mark.parametrize("size", SIZES)
async def test_figures_of_an_engine_that_does_not_answer_are_dated(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    monkeypatch.setattr(snapshot_poller, "_PATIENCE", 0.01)
    backend = Silent()
    async with bench(size, backend=backend) as it:
        await it.until(lambda: "80 tok/s" in it.screen_text())
        backend.speaks.clear()
        it.app.poller.wake()
        await it.until(lambda: "no answer, as of " in it.screen_text())
        assert it.screen_text().splitlines()[-1].startswith(" no answer  ")
        await it.pilot.press("f8")
        await it.until(lambda: "Why this speed (no answer, as of " in it.screen_text())
        await it.pilot.press("escape")
        backend.speaks.set()
        await it.until(lambda: "no answer" not in it.screen_text())
        assert it.screen_text().splitlines()[-1].startswith(" ready  ")


@run
async def test_a_lost_link_says_so_itself(bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_poller, "_PATIENCE", 0.01)
    backend = Silent()
    async with bench((120, 40), backend=backend) as it:
        await it.until(lambda: "80 tok/s" in it.screen_text())
        backend.emit(lost())
        it.main.show_late(True)
        it.main.show_late(False)
        await it.until(lambda: "no link, as of " in it.screen_text())
        assert "no answer" not in it.screen_text()
        backend.emit(back())
        await it.until(lambda: "no link" not in it.screen_text())
