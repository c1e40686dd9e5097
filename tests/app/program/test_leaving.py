"""What is left on the terminal when the program has ended."""

import gc
import warnings
from collections.abc import Callable
from typing import Any

from minichat.clients.fake import FakeBackend
from tests.app.conftest import run, snapshot


@run
async def test_work_that_never_started_leaves_no_warning(bench: Callable[..., Any]) -> None:
    """Python would print it below the restored screen."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        async with bench() as it:
            await it.pilot.press(*"hello")
            it.main.composing._begin()
            it.app.exit()
        del it
        gc.collect()
    assert not [str(each.message) for each in seen if "never awaited" in str(each.message)]


@run
async def test_a_message_that_the_engine_never_had_says_so_at_the_next_start(
    bench: Callable[..., Any],
) -> None:
    backend = FakeBackend([snapshot()])
    backend.loaded.clear()
    async with bench(backend=backend) as it:
        it.main.prompt.put("hello")
        await it.pilot.press("enter")
        await it.until(lambda: "waiting" in it.screen_text())
        await it.command("program.quit")
        asks = "A message is waiting to be sent; press ^Q again to quit without sending it"
        await it.until(lambda: it.notices() == [asks])
        assert it.app.return_code is None
        await it.command("program.quit")
        await it.until(lambda: it.app.return_code == 0)
    assert not it.replies
    async with bench() as it:
        assert "stopped: the screen was closed before the engine had the message" in it.screen_text()
