"""Output of other programs on the terminal is removed by a full redraw."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from textual.driver import Driver
from textual.drivers.headless_driver import HeadlessDriver

from tests.app.conftest import run
from tests.app.screen_cells import Cells, cells_of
from tests.cases import soak

SIZE = (100, 24)


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Cells:
    """What the program's terminal shows."""
    cells = Cells(*SIZE)
    monkeypatch.setattr(HeadlessDriver, "is_headless", False)
    monkeypatch.setattr(HeadlessDriver, "write", lambda _, data: cells.take(data))
    return cells


@run
@pytest.mark.parametrize("over", [(), ("f1",), *soak((("ctrl+p",),), (("f3",),))])
async def test_control_l_redraws_everything(
    bench: Callable[..., Any], cells: Cells, over: tuple[str, ...]
) -> None:
    async with bench(SIZE, frames=True) as it:
        await it.answered(await it.say("hello"))
        await it.pilot.press(*over)
        await it.until(lambda: cells.lines == cells_of(it.app))
        cells.take("\x1b[1;3H\x1b[31mBroadcast message from root\x1b[0m")
        cells.lines[9:12] = [[("x", "")] * SIZE[0]] * 3
        await it.pilot.press("left")  # a partial redraw
        assert cells.lines != cells_of(it.app)
        await it.pilot.press("ctrl+l")
        await it.until(lambda: cells.lines == cells_of(it.app))


@pytest.mark.parametrize("over", [(), ("f1",)])
@run
async def test_returning_from_the_shell_redraws_everything(
    bench: Callable[..., Any], cells: Cells, over: tuple[str, ...]
) -> None:
    async with bench(SIZE, frames=True) as it:
        await it.answered(await it.say("hello"))
        await it.pilot.press(*over)
        await it.until(lambda: cells.lines == cells_of(it.app))
        cells.lines[0:12] = [[("x", "")] * SIZE[0]] * 12
        it.app.post_message(Driver.SignalResume())
        await it.until(lambda: cells.lines == cells_of(it.app))


@run
async def test_the_palette_offers_it(bench: Callable[..., Any], cells: Cells) -> None:
    async with bench(SIZE, frames=True) as it:
        cells.lines[3] = [("x", "")] * SIZE[0]
        await it.pilot.press("ctrl+p", *"redraw")
        await it.until(lambda: "Redraw the screen" in it.screen_text())
        await it.pilot.press("enter")
        await it.until(lambda: it.app.screen is it.main and cells.lines[3][50] != ("x", ""))


@run
async def test_messages_get_their_date_when_the_day_ends(
    bench: Callable[..., Any], cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minichat.ui.monitor.figures.CALENDAR_EVERY", 0.05)
    noon = 1_795_608_000.0
    times = {"now": noon}
    monkeypatch.setattr("minichat.ui.monitor.figures.wall_clock", lambda: times["now"])
    async with bench(SIZE, frames=True, wall_clock=lambda: noon) as it:
        await it.answered(await it.say("hello"))
        clock = time.strftime("%H:%M", time.localtime(noon))

        def heads() -> list[str]:
            lines = ["".join(character for character, _ in line) for line in cells.lines]
            return [line.split("you")[1].strip() for line in lines if "▌ you" in line]

        await it.until(lambda: heads() == [clock])
        times["now"] += 86_400
        date = time.strftime("%b ", time.localtime(noon)) + str(time.localtime(noon).tm_mday)
        await it.until(lambda: heads() == [f"{date} {clock}"])
