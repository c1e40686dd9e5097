"""Conversions of the weights that end, or would end, without their drawer."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.api.events import Quantized
from engine.api.snapshot import Change
from minichat.clients.fake import FakeBackend
from minichat.features.leaving import RESTART
from tests.app.conftest import run, snapshot

FAILED = Quantized(7, 1.0, "int8", "none", 64, 2.0, "OutOfMemoryError: 3 GB")
DONE = Quantized(8, 2.0, "int4", "none", 64, 2.0, "")


@run
async def test_a_failure_is_reported_unless_the_drawer_shows_it(bench: Callable[..., Any]) -> None:
    async with bench((100, 40), backend=FakeBackend([snapshot()])) as it:
        await it.pilot.press("f4")
        it.main.show_events([FAILED])
        await it.pilot.press("f4")
        it.main.show_events([DONE])
        assert not it.notices()
        it.main.show_events([FAILED])
        said = "The weights are still none: cannot use int8: OutOfMemoryError: 3 GB"
        await it.until(lambda: it.notices() == [said])


@run
async def test_a_restart_that_would_end_it_is_confirmed(bench: Callable[..., Any]) -> None:
    converting = replace(snapshot(), change=Change("int8", 3, 8))
    async with bench(backend=FakeBackend([converting])) as it:
        await it.until(lambda: it.main.engine.latest)
        await it.pilot.press("f5")
        said = "The weights are changing to int8; press F5 again to stop and restart"
        await it.until(lambda: it.notices() == [said])
        assert it.app.return_code is None
        await it.pilot.press("f5")
        await it.until(lambda: it.app.return_code == RESTART)
