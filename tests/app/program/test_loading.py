"""What the banner says of a model that loads."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from engine.kernels.cpu.compiled import build
from minichat.clients.fake import FakeBackend
from minichat.clients.protocol import LinkLost
from tests.app.conftest import run, snapshot


@run
async def test_the_banner_says_what_a_load_waits_for(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights wait for them, so the bar would stay near 0 %."""
    backend, compiles = FakeBackend([snapshot()]), [True]
    monkeypatch.setattr(build, "compiling", lambda: compiles[0])
    async with bench(backend=backend) as it:
        backend.loaded.clear()
        backend.progress = None
        switching = asyncio.create_task(it.app.context.lifecycle.switch("pocket"))
        await it.until(lambda: backend.progress is not None)
        backend.progress(20_000, 10_000_000)
        await it.until(lambda: "loading pocket: compiling kernels for this CPU" in it.screen_text())
        compiles[0] = False
        backend.progress(5_000_000, 10_000_000)
        await it.until(lambda: "loading pocket  5.0 of 10.0 MB" in it.screen_text())
        backend.progress(10_000_000, 10_000_000)
        await it.until(lambda: "pocket: the weights are there, preparing kernels" in it.screen_text())
        backend.loaded.set()
        await switching
        await it.until(lambda: "loading" not in it.screen_text())


@run
async def test_a_first_start_is_not_said_to_reconnect(bench: Callable[..., Any]) -> None:
    backend = FakeBackend([snapshot()], elsewhere="engine main")
    backend.loaded.clear()
    async with bench(backend=backend) as it:
        await it.pilot.press("f5")
        await it.until(lambda: it.notices() == ["Already attaching"])
        backend.loaded.set()
        await it.until(lambda: it.app.lifecycle.alive)
        backend.emit(LinkLost(0, 1.0, "gone"))
        await it.until(lambda: not it.app.lifecycle.ready.is_set())
        await it.pilot.press("f5")
        await it.until(lambda: it.notices()[1:] == ["Already reconnecting"])
