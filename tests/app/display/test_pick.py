"""Lists to choose from, while their entries change."""

from collections.abc import Callable
from typing import Any

import pytest
from textual.content import Content
from textual.widgets import Input, OptionList

from minichat.ui.dialogs.pick import Choice, PickScreen
from tests.app.conftest import run


@run
@pytest.mark.parametrize("query", ["nothing", "d"])
async def test_a_choice_from_an_outdated_list_is_ignored(bench: Callable[..., Any], query: str) -> None:
    words = ("a", "b", "c", "d")
    taken: list[object] = []
    async with bench() as it:
        screen = PickScreen(
            "words", lambda query: [Choice(Content(word), word) for word in words if query in word], "type"
        )
        it.app.push_screen(screen, taken.append)
        await it.until(lambda: it.app.screen is screen and screen.query(OptionList))
        options = screen.query_one(OptionList)
        options.highlighted = 2
        options.action_select()  # the list has changed when this arrives
        screen.on_input_changed(Input.Changed(screen.query_one(Input), query))
        await it.pilot.pause()
        assert it.app.screen is screen and taken == []
        screen.on_input_changed(Input.Changed(screen.query_one(Input), "d"))
        await it.pilot.press("enter")
        await it.until(lambda: taken == ["d"])


@run
async def test_a_dialog_closes_only_itself_and_once(bench: Callable[..., Any]) -> None:
    """A second key may already be on its way to a dialog that closes."""
    taken: list[object] = []
    async with bench() as it:
        below, above = (PickScreen(name, lambda query: [Choice(Content("a"), "a")]) for name in "ba")
        it.app.push_screen(below)
        it.app.push_screen(above, taken.append)
        await it.until(lambda: it.app.screen is above and above.query(OptionList))
        above.take("a")
        above.action_leave()
        await it.until(lambda: it.app.screen is below)
        above.action_leave()
        below.action_leave()
        below.action_leave()
        await it.until(lambda: it.app.screen is it.main)
        assert taken == ["a"]
