"""Probabilities from before a conversion of the weights or the cache are marked as such."""

from collections.abc import Callable
from typing import Any

from tests.app.conftest import run, snapshot
from tests.app.decoding.test_picking import letters, replied


@run
async def test_shares_from_before_a_conversion_are_named(bench: Callable[..., Any]) -> None:
    async with bench((120, 40), backend=letters()) as it:
        it.main.show_snapshot(snapshot(1))
        await replied(it, "abc", 0.5)
        await it.pilot.press("alt+c")
        await it.until(lambda: "token 1 of 3  50.0%" in it.screen_text())
        assert "before the conversion" not in it.screen_text()
        it.main.show_snapshot(snapshot(2, quantization="int8"))
        await it.until(lambda: "token 1 of 3  50.0% before the conversion" in it.screen_text())
        await it.pilot.press("escape")
        await replied(it, "def", 0.25)
        await it.pilot.press("alt+c")
        await it.until(lambda: "token 1 of 3  25.0%" in it.screen_text())
        assert "before the conversion" not in it.screen_text()
        it.main.show_snapshot(snapshot(3, quantization="int8", kv_scheme="int8"))
        await it.pilot.press("right")
        await it.until(lambda: "token 2 of 3  25.0% before the conversion" in it.screen_text())
