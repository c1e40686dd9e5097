"""What the mouse does in chats side by side."""

from collections.abc import Callable
from typing import Any

import pytest

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


@run
@pytest.mark.parametrize("size", [(200, 50), (120, 40)])
async def test_a_selection_that_ends_outside_its_chat_ends_at_its_edge(
    bench: Callable[..., Any], size: tuple[int, int]
) -> None:
    async with bench(size) as it:
        await it.answered(await it.say("hello"), "one\n\ntwo\n\nthree\n\nfour")
        await it.pilot.press("ctrl+n")
        await it.answered(await it.say("other"), "five\n\nsix")
        await it.pilot.press("alt+1")
        own = next(each.transcript for each in it.main.panes if each.conversation is it.app.chats.active)
        lines = it.screen_text().splitlines()
        y = next(y for y, line in enumerate(lines) if "three" in line)
        x = own.region.x
        await it.pilot.mouse_down(offset=(x, y - 2))
        for to in [(own.region.right - 1, y), (own.region.right + 1, y), (own.region.right + 20, y)]:
            await it.pilot.hover(offset=to)
            assert it.main.get_selected_text() == "two\n\nthree"
        await it.pilot.mouse_up(offset=to)
        assert (it.main.get_selected_text(), it.app.focused) == ("two\n\nthree", own)
