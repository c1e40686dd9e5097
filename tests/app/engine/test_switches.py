"""Engine features are turned off and on from the screen, and the screen shows their state."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.api.errors import EngineError
from engine.api.events import Switched
from engine.api.snapshot import Switch
from engine.api.snapshot import Throughput as Figures
from minichat.clients.fake import FakeBackend
from minichat.features import switches
from minichat.ui.monitor import EngineLine, MonitorPanel
from tests.app.conftest import run, snapshot

SWITCHES = (Switch("prefix_cache", True, True), Switch("overlap", False, False))


def backend(**changes: Any) -> FakeBackend:
    return FakeBackend([snapshot(switches=SWITCHES, **changes)])


@run
async def test_a_feature_is_toggled_from_the_palette(bench: Callable[..., Any]) -> None:
    async with bench((130, 50), backend=backend()) as it:
        await it.until(lambda: it.main.engine.latest)
        await it.pilot.press("ctrl+p", *"prefix cache", "enter")
        await it.until(lambda: "prefix cache off" in it.screen_text())
        assert not it.main.engine.latest.switches[0].on
        assert "switched" in it.screen_text()
        await it.pilot.press("ctrl+p", *"turn prefix", "enter")
        await it.until(lambda: it.main.engine.latest.switches[0].on)
        await it.until(lambda: "KV map  0%" in it.screen_text() and "prefix cache off" not in heading(it))


def heading(it: Any) -> str:
    return next(line for line in it.screen_text().splitlines() if "KV map" in line)


@run
async def test_a_feature_is_toggled_from_the_list(bench: Callable[..., Any]) -> None:
    async with bench(backend=backend()) as it:
        await it.until(lambda: it.main.engine.latest)
        await it.pilot.press("alt+x")
        await it.until(lambda: "plans the next step" in it.screen_text())
        await it.pilot.press("down", "enter")
        await it.until(lambda: it.main.engine.latest.switches[1].on)
        assert "overlap on" in it.screen_text(), "the engine line shows what was changed"


@run
async def test_before_the_engine_is_loaded(bench: Callable[..., Any]) -> None:
    waiting = backend()
    waiting.loaded.clear()
    async with bench(backend=waiting) as it:
        await it.pilot.press("alt+x")
        await it.until(lambda: any("not loaded" in notice for notice in it.notices()))
        switches.turn(it.app.context, "overlap", on=True)
        await it.until(lambda: any("no switch for overlap" in notice for notice in it.notices()))
        waiting.loaded.set()


@run
async def test_the_graph_marks_when_a_feature_was_toggled(bench: Callable[..., Any]) -> None:
    async with bench((130, 60), backend=backend(rates=Figures(decode=50.0))) as it:
        panel = it.main.query_one(MonitorPanel)
        await it.until(lambda: panel.rates.snapshot)
        it.app.poller.stop()
        latest = panel.rates.snapshot
        panel.add_event(Switched(1, 0.0, "overlap", on=True))
        right = edge(panel)
        panel.update_from(replace(latest, at=latest.at + 15), {})
        half = (right - decode_row(panel).index("▏")) / 2
        assert right - edge(panel) == pytest.approx(half, abs=1), "15 of 30 seconds have passed"
        assert "│ overlap on" in panel.rates.render_line(0).text


def edge(panel: MonitorPanel) -> int:
    """The column of the marker in the decode graph."""
    return decode_row(panel).index("│")


def decode_row(panel: MonitorPanel) -> str:
    lines = (panel.rates.render_line(at).text for at in range(panel.rates.size.height))
    return next(line for line in lines if "decode" in line)


@run
async def test_the_narrow_line_shows_it_before_anything_that_may_be_cut(bench: Callable[..., Any]) -> None:
    async with bench(
        (46, 20), backend=FakeBackend([snapshot(switches=(Switch("overlap", False, True),))])
    ) as it:
        await it.until(lambda: "overlap off" in it.main.query_one(EngineLine).render().plain)
        assert "overlap off" in it.screen_text()


@run
async def test_a_switch_that_the_engine_does_not_take_is_not_announced(bench: Callable[..., Any]) -> None:
    async def refuse(_: object) -> None:
        raise EngineError("it has died")

    dead = backend()
    async with bench(backend=dead) as it:
        await it.until(lambda: it.main.engine.latest)
        dead.send = refuse
        switches.turn(it.app.context, "overlap", on=True)
        await it.until(lambda: any("It has died" in notice for notice in it.notices()))
        assert len(it.notices()) == 1


@run
@pytest.mark.parametrize("keys", [["ctrl+p", *"turn prefix"], ["alt+x"]])
async def test_what_the_list_says_is_done_though_another_screen_did_it_meanwhile(
    bench: Callable[..., Any], keys: list[str]
) -> None:
    async with bench((130, 50), backend=backend()) as it:
        await it.until(lambda: it.main.engine.latest)
        await it.pilot.press(*keys)
        off = tuple(each._replace(on=False) for each in SWITCHES)
        it.main.show_snapshot(replace(it.main.engine.latest, switches=off))
        await it.pilot.press("enter")
        await it.until(lambda: "Prefix cache off, from the next step" in it.notices())
