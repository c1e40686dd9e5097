"""A conversion that fails while its drawer is closed."""

from collections.abc import Callable
from typing import Any

from engine.api.events import Quantized
from minichat.clients.fake import FakeBackend
from tests.app.conftest import run, snapshot

FAILED = Quantized(7, 1.0, "int8", "none", 64, 2.0, "OutOfMemoryError: 3 GB")
DONE = Quantized(8, 2.0, "int4", "none", 64, 2.0, "")


@run
async def test_it_is_reported_unless_the_drawer_shows_it(bench: Callable[..., Any]) -> None:
    async with bench((100, 40), backend=FakeBackend([snapshot()])) as it:
        await it.pilot.press("f4")
        it.main.show_events([FAILED])
        await it.pilot.press("f4")
        it.main.show_events([DONE])
        assert not it.notices()
        it.main.show_events([FAILED])
        said = "The weights are still none: cannot use int8: OutOfMemoryError: 3 GB"
        await it.until(lambda: it.notices() == [said])
