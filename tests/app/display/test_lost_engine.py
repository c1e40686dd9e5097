"""What the screen says of an engine that has ended, but has worked."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.api.snapshot import Quantiles, StepTimes, Throughput
from minichat.clients.fake import FakeBackend
from tests.app.conftest import run, snapshot

WORKED = snapshot(
    9, (0,), rates=Throughput(decode=40.0, steps=40.0), step_times=StepTimes(launch=0.02), finished=1
)


@run
async def test_its_figures_are_gone_and_no_more_are_promised(bench: Callable[..., Any]) -> None:
    async with bench((120, 40), backend=FakeBackend([snapshot()])) as it:
        await it.until(lambda: "no measurements yet" in it.screen_text())
        it.main.show_snapshot(replace(WORKED, ttft=Quantiles(0.1, 0.1, 0.1, 1)))
        await it.until(lambda: "engine TTFT" in it.screen_text())
        it.main.show_snapshot(it.main.engine.latest.ended("out of memory"))
        await it.until(lambda: "no measurements" in it.screen_text())
        assert "no measurements yet" not in it.screen_text()


@run
async def test_nothing_is_to_be_done_during_a_reply(bench: Callable[..., Any]) -> None:
    async with bench((120, 40), backend=FakeBackend([snapshot()])) as it:
        it.main.show_snapshot(WORKED)
        it.main.show_snapshot(replace(WORKED, requests=(), running=0))
        await it.pilot.press("f8")
        await it.until(lambda: "last run" in it.screen_text())
        assert "Open this during a reply" in it.screen_text()
        it.main.show_snapshot(it.main.engine.latest.ended("out of memory"))
        await it.until(lambda: "Open this during a reply" not in it.screen_text())
        assert "last run" in it.screen_text()
