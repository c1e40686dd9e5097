"""What the mouse does in chats side by side."""

from collections.abc import Callable
from typing import Any

from minichat.features.chats.chats import new
from minichat.ui.panes.pane import ChatPane
from tests.app.conftest import run


@run
async def test_the_mouse_selects_in_a_chat_that_is_not_the_active_one(bench: Callable[..., Any]) -> None:
    async with bench((200, 50)) as it:
        await it.answered(await it.say("hello"), "a long reply")
        await it.pilot.press("ctrl+n", "x")
        other = it.main.panes[0].transcript
        await it.pilot.mouse_down(other, offset=(2, 4))
        await it.pilot.hover(other, offset=(5, 4))
        await it.pilot.mouse_up(other, offset=(5, 4))
        await it.until(lambda: it.app.chats.active.chat.title == "hello")
        assert it.main.get_selected_text() == "long"
        assert it.app.focused is other


@run
async def test_a_click_while_a_chat_opens(bench: Callable[..., Any]) -> None:
    """Its messages are not on the screen yet."""
    async with bench((200, 50)) as it:
        await new(it.app.context)
        it.main._clicked(ChatPane.Clicked(it.app.chats.active))
        assert it.app.focused is it.main.prompt
