"""The line of tokens names no keys for candidates that the engine does not name."""

from collections.abc import Callable
from typing import Any

from tests.app.conftest import run
from tests.app.decoding.test_picking import letters, replied


@run
async def test_without_candidates_only_keys_that_work_are_named(bench: Callable[..., Any]) -> None:
    async with bench((120, 40), backend=letters()) as it:
        keys = lambda: it.screen_text().splitlines()[-1]  # noqa: E731
        await replied(it, "abc")
        it.backend.full = True
        await it.pilot.press("alt+c")
        await it.until(lambda: "the engine is full" in it.screen_text())
        await it.until(lambda: "Left Right token  Esc done" in keys())
        assert "fork" not in it.screen_text()
        it.backend.full = False
        await it.pilot.press("right")
        await it.until(lambda: "Enter continue in a fork  Esc done" in keys())
        assert "Enter: continue from here in a fork  Esc done" in it.screen_text()
