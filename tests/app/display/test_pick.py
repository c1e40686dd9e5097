"""Lists to choose from, while their entries change."""

from collections.abc import Callable
from typing import Any

import pytest
from textual.content import Content
from textual.widgets import Input, OptionList

from minichat.ui.dialogs.pick import Choice, PickScreen
from tests.app.conftest import run
from tests.cases import soak


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


@run
@pytest.mark.parametrize("size", [(40, 12), (120, 40), *soak(((80, 24),))])
@pytest.mark.parametrize("hint", ["", *soak("type")])
async def test_the_highlighted_line_and_the_note_are_visible(
    bench: Callable[..., Any], size: tuple[int, int], hint: str
) -> None:
    async with bench(size) as it:
        screen = PickScreen(
            "words", lambda query: [Choice(Content(f"word {n}."), n) for n in range(40)], hint
        )
        it.app.push_screen(screen)
        await it.until(lambda: "word 0." in it.screen_text())
        await it.pilot.press(*["down"] * 39)
        await it.until(lambda: "word 39." in it.screen_text())
        screen.say("a note of two lines " * 4)
        await it.until(lambda: "word 39." in it.screen_text() and "a note" in it.screen_text())
        await it.pilot.resize_terminal(60, 16)
        await it.until(lambda: "word 39." in it.screen_text() and "a note" in it.screen_text())


@run
@pytest.mark.parametrize("size", [(40, 12), *soak(((80, 16),), ((80, 24),))])
async def test_a_text_of_many_lines_scrolls_to_the_cursor(
    bench: Callable[..., Any], size: tuple[int, int]
) -> None:
    async with bench(size) as it:
        await it.pilot.press("alt+s")
        await it.until(lambda: "System prompt" in it.screen_text())
        for number in range(14):
            await it.pilot.press(*f"line{number}", "enter")
        await it.until(lambda: "line13" in it.screen_text())


@run
async def test_long_lines_are_cut_in_ascii(bench: Callable[..., Any]) -> None:
    async with bench((40, 12), ascii=True) as it:
        screen = PickScreen(
            "words", lambda query: [Choice(Content(f"long {'x' * 60}"), n) for n in range(40)]
        )
        it.app.push_screen(screen)
        await it.until(lambda: "long x" in it.screen_text())
        assert it.screen_text().isascii()
