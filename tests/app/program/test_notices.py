"""Notices over the screen: how they go."""

from collections.abc import Callable
from typing import Any

from tests.app.conftest import run


@run
async def test_escape_removes_notices_so_that_the_same_one_is_shown_again(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        for count in (1, 2):
            it.app.notify("a key is bound twice", timeout=60)
            it.app.notify("a key is bound twice", timeout=60)
            await it.until(lambda count=count: it.notices() == ["a key is bound twice"] * count)
            await it.pilot.press("escape")
