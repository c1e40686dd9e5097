"""Stepping through tokens says what it waits for, if an engine does not send them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from engine.api.layout import PromptLayout
from minichat.clients.protocol import Prompt
from minichat.features.picking import feature
from tests.app.conftest import run, snapshot
from tests.app.decoding.test_picking import Letters, replied
from tests.attach.test_screen import lost


class Waiting(Letters):
    """Sends no tokens before `there` is set."""

    def __init__(self) -> None:
        super().__init__([snapshot()], elsewhere="box:8000")
        self.there = asyncio.Event()

    async def layout(self, prompt: Prompt) -> PromptLayout:
        await self.there.wait()
        return await super().layout(prompt)


@run
@pytest.mark.parametrize("linked", [True, False])
async def test_a_wait_for_the_tokens_is_not_silent(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    monkeypatch.setattr(feature, "_LATE", 0.01)
    backend = Waiting()
    async with bench((120, 40), backend=backend, shows_notices=True) as it:
        backend.there.set()
        await replied(it, "xabc")
        backend.there.clear()
        if not linked:
            backend.emit(lost())
            await it.until(lambda: "no link" in it.screen_text())
        await it.pilot.press("alt+c")
        said = "Reading the tokens ..." if linked else "No link. The tokens are read when it is back"
        await it.until(lambda: it.notices() == [said])
        await it.until(lambda: said[:20] in it.screen_text())
        backend.there.set()
        await it.until(lambda: it.picker.display and said[:20] not in it.screen_text())
