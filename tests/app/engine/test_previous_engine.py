"""Figures of an engine that has ended are not shown as those of the next one."""

from collections.abc import Callable
from typing import Any

from minichat.clients.fake import FakeBackend
from tests.app.conftest import run, snapshot


@run
async def test_figures_of_the_previous_model_are_not_shown_while_another_one_loads(
    bench: Callable[..., Any],
) -> None:
    backend = FakeBackend([snapshot(running=(0,), step=9)])
    old = ("2 of 64", "1 running", "40 tok/s")
    async with bench((200, 60), backend=backend) as it:
        await it.pilot.press("f4")
        await it.until(lambda: all(each in it.screen_text() for each in old))
        assert "scheme  of" not in it.screen_text()
        backend.loaded.clear()
        it.app.run_worker(it.app.lifecycle.switch("pocket"))
        await it.until(lambda: "loading pocket" in it.screen_text())
        await it.until(lambda: not any(each in it.screen_text() for each in old))
        assert "scheme  of the previous engine" in it.screen_text()
        await it.pilot.press("alt+m", "right", "enter", "enter", "x", "2", "2")
        backend.loaded.set()
        await it.until(lambda: all(each in it.screen_text() for each in old))
