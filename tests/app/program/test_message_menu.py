"""The menu of a message."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.api.errors import RequestTooLong
from minichat.ui.dialogs.menus import message_menu
from tests.app.conftest import run


@run
async def test_it_warns_of_lost_messages_only_if_there_are_any(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"))
        await it.answered(await it.say("more"))
        first, reply, _, newest = it.app.chats.active.chat.messages
        for message, offered, warns in (
            (first, "Edit and resend", True),
            (reply, "Regenerate", True),
            (newest, "Regenerate", False),
        ):
            message_menu(it.main.context, message.id)
            await it.until(lambda offered=offered: offered in it.screen_text())
            assert (f"{offered} (removes later messages)" in it.screen_text()) == warns
            await it.pilot.press("escape")


@run
async def test_nothing_that_needs_text_is_offered_for_a_reply_without_any(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        it.backend.refusal = RequestTooLong("9 tokens; tiny takes 8")
        it.main.prompt.put("hello")
        await it.pilot.press("enter")
        await it.until(lambda: "failed: 9 tokens" in it.screen_text())
        message_menu(it.main.context, it.app.chats.active.chat.messages[-1].id)
        await it.until(lambda: "Fork the chat from here" in it.screen_text())
        assert "Copy" not in it.screen_text() and "Step through" not in it.screen_text()


@run
@pytest.mark.parametrize("keys", [["y"], ["m", "enter"]], ids=["key", "menu"])
async def test_what_a_running_reply_has_so_far_is_copied(bench: Callable[..., Any], keys: list[str]) -> None:
    async with bench() as it:
        reply = await it.say("hello")
        reply.say("one two")
        await it.until(lambda: "one two" in it.screen_text())
        await it.pilot.press("tab", "ctrl+up", *keys)
        await it.until(lambda: it.app.clipboard == "one two")
        await it.answered(reply)


@run
async def test_what_came_while_the_menu_was_open_is_copied_too(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        reply = await it.say("hello")
        reply.say("one two")
        await it.until(lambda: "one two" in it.screen_text())
        await it.pilot.press("tab", "ctrl+up", "m")
        await it.until(lambda: "Copy to the clipboard" in it.screen_text())
        reply.say(" three")
        await it.until(lambda: it.app.chats.active.messages[-1].text == "one two three")
        await it.pilot.press("enter")
        await it.until(lambda: it.app.clipboard)
        assert it.app.clipboard == "one two three"
        await it.answered(reply)
