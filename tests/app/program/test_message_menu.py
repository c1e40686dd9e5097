"""The menu of a message."""

from collections.abc import Callable
from typing import Any

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
