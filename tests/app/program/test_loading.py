"""What the banner and the list of models say of a model that loads, or has loaded."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from engine.api.errors import ModelNotFound
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


@run
@pytest.mark.parametrize("trouble", ["", "cannot load tiny: it is made of wood"])
async def test_a_load_that_ended_is_no_longer_waited_for(bench: Callable[..., Any], trouble: str) -> None:
    async with bench((120, 30)) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        it.app.lifecycle.ready.clear()
        await it.pilot.press("alt+o")
        await it.until(lambda: "built in" in it.screen_text())
        await it.pilot.press("enter")
        await it.until(lambda: "tiny is loading; wait until it is ready" in it.screen_text())
        it.app.lifecycle.trouble = trouble
        it.app.lifecycle.ready.set()
        await it.until(lambda: "is loading" not in it.screen_text())
        assert trouble in it.screen_text()


@run
async def test_a_model_that_could_not_be_loaded_is_not_listed_as_running(bench: Callable[..., Any]) -> None:
    def listed() -> str:
        return next(line for line in it.screen_text().splitlines() if "11.0 MB  llama" in line)

    async with bench((120, 30)) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        it.backend.unloadable["pocket"] = ModelNotFound("it is made of wood")
        it.backend.loaded.clear()
        it.app.run_worker(it.app.lifecycle.switch("pocket"))
        await it.until(lambda: it.backend.switched)
        await it.pilot.press("alt+o")
        await it.until(lambda: "built in" in listed())
        it.backend.loaded.set()
        await it.until(lambda: it.app.lifecycle.alive and it.app.lifecycle.model == "tiny")
        await it.pilot.press(*"pock")
        assert "running" not in listed()
        await it.pilot.press("escape")
        del it.backend.unloadable["pocket"]
        it.backend.loaded.clear()
        it.app.run_worker(it.app.lifecycle.switch("pocket"))
        await it.until(lambda: len(it.backend.switched) == 3)
        await it.pilot.press("alt+o")
        await it.until(lambda: "built in" in listed())
        it.backend.loaded.set()
        await it.until(lambda: "running" in listed())
