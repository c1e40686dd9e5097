"""Figures of an engine that has ended are not shown as those of the next one, or of none."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.api.snapshot import SchemeView
from minichat.clients.fake import FakeBackend
from tests.app.conftest import run, snapshot
from tests.app.engine.test_quantization import MEMORY


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


@run
async def test_an_engine_that_has_ended_has_no_figures(bench: Callable[..., Any]) -> None:
    views = (SchemeView("none", "", 4_000_000), SchemeView("int8", "", 2_200_000))
    shot = replace(snapshot(), schemes=views, kv_schemes=views, memory=MEMORY)
    async with bench((100, 50), backend=FakeBackend([shot])) as it:
        await it.pilot.press("f4")
        await it.until(lambda: "memory now, weights not" in it.screen_text())
        it.main.show_snapshot(shot.ended("it is out of memory"))
        await it.until(lambda: "The engine is not loaded." in it.screen_text())
        left = it.screen_text()
        assert not [each for each in ("KV cache", "tokens   ", "int8", "memory now") if each in left]
        it.main.show_snapshot(shot)
        await it.until(lambda: "memory now, weights not" in it.screen_text())
