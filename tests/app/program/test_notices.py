"""Where notices are shown on the screen."""

from collections.abc import Callable
from typing import Any

from tests.app.conftest import run


@run
async def test_a_notice_after_others_that_were_cleared_is_at_the_top(bench: Callable[..., Any]) -> None:
    async with bench((80, 24), shows_notices=True) as it:
        for number in range(4):
            it.app.notify(f"notice {number}")
            await it.until(lambda number=number: f"notice {number}" in it.screen_text())
            assert f"notice {number}" in it.screen_text().splitlines()[1]
            await it.pilot.press("escape")
            await it.until(lambda: "notice" not in it.screen_text())
