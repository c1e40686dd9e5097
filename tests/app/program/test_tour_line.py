"""The line of keys below a page of the tour."""

from collections.abc import Callable
from typing import Any

import pytest

from minichat.features.tour.panel import TourPanel
from tests.app.conftest import run


@run
@pytest.mark.parametrize("height", [24, 12])
async def test_it_is_complete_at_80_columns(bench: Callable[..., Any], height: int) -> None:
    async with bench((80, height), tour=True) as it:
        await it.until(lambda: it.main.query(TourPanel))
        panel = it.main.query_one(TourPanel)

        def line() -> str:
            return str(panel.render().plain).splitlines()[-1].strip()

        await it.pilot.press("enter", "enter")
        keys = "Enter next  r again  b back  q quit  k keep chats, quit"
        await it.until(lambda: line().endswith(keys))
        it.main.prompt.focus()
        await it.until(lambda: line().endswith(f"Shift+Tab for  {keys}") and "Esc" not in line())
        await it.pilot.press("alt+m")
        await it.until(lambda: line().endswith(f"Esc, Shift+Tab for  {keys}"))
        await it.pilot.resize_terminal(30, height)
        await it.until(lambda: "for  Ent" in line())
