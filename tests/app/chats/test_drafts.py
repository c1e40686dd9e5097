"""A draft is saved within a second."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.app.conftest import run


@run
async def test_a_draft_is_saved_while_it_is_typed(bench: Callable[..., Any]) -> None:
    """A killed program cannot save anything, so only what is already stored survives."""
    async with bench() as it:
        stored = lambda: {chat.id: chat.draft for chat in it.app.store.open_chats()}  # noqa: E731
        first = it.app.chats.active.chat
        await it.pilot.press(*"half")
        await it.until(lambda: stored()[first.id] == "half")
        await it.pilot.press(*" a", "ctrl+n", *"second")
        second = it.app.chats.active.chat
        await it.until(lambda: stored() == {first.id: "half a", second.id: "second"})
        await it.answered(await it.say("second thought"))
        assert stored() == {first.id: "half a", second.id: ""}, "a sent message is no draft"


@run
async def test_a_save_that_is_late_is_still_within_a_second(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a model loads, a timer may be late by half a second."""
    async with bench() as it:
        it.main.keep_drafts()  # the screen begins with an empty prompt, which counts as a change
        delays: list[float] = []
        start = it.app.set_timer

        def record(delay: float, callback: Any = None, **keywords: Any) -> Any:
            if callback == it.main.drafts.keep:
                delays.append(delay)
            return start(delay, callback, **keywords)

        monkeypatch.setattr(it.app, "set_timer", record)
        await it.pilot.press("h")
        await it.until(lambda: it.app.store.open_chats()[0].draft == "h")
        assert len(delays) == 1
        assert delays[0] <= 0.3


@run
async def test_an_edited_message_is_no_draft(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"))
        chat = it.app.chats.active.chat
        await it.pilot.press(*"later")
        await it.until(lambda: it.app.store.chat(chat.id).draft == "later")
        await it.pilot.press("alt+e", *" again")
        await it.until(lambda: it.main.prompt.text == "hello again")
        it.main.drafts.keep()
        assert it.app.store.chat(chat.id).draft == "later"
