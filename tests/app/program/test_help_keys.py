"""Keys that the help shows close it and act."""

from collections.abc import Callable
from typing import Any

import pytest

from minichat.features.chats.overview import ChatOverview
from tests.app.conftest import Bench, run


def _overview(it: Bench) -> bool:
    return bool(it.app.context.part(ChatOverview).display)


@run
@pytest.mark.parametrize(
    ("key", "acts"),
    [
        ("alt+g", _overview),
        ("ctrl+n", lambda it: len(it.app.chats) == 2),
        ("ctrl+f", lambda it: "Esc done" in it.screen_text()),
        ("alt+y", lambda it: it.notices() == ["There is no reply to copy"]),
    ],
)
async def test_a_key_of_a_command(bench: Callable[..., Any], key: str, acts: Callable[[Bench], bool]) -> None:
    async with bench((120, 40)) as it:
        await it.pilot.press("f1")
        await it.until(lambda: "type to filter" in it.screen_text())
        await it.pilot.press(key)
        await it.until(lambda: it.app.screen is it.main and acts(it))


@run
async def test_keys_that_type_or_send_stay_in_the_filter(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        reply = await it.say("hello")
        await it.pilot.press("f1")
        await it.until(lambda: "type to filter" in it.screen_text())
        await it.pilot.press("k", "enter", "ctrl+j", "up")
        await it.until(lambda: "Fork this chat" in it.screen_text())
        assert it.app.screen is not it.main
        await it.pilot.press("escape")
        await it.until(lambda: it.app.screen is it.main)
        assert not reply.finished, "Esc only closed the help"


@run
@pytest.mark.parametrize(
    ("key", "action"),
    [
        ("Ctrl+P", "All commands"),
        ("ctrl+n", "New chat"),
        ("ctrl+z", "undo"),
        ("pagedown", "Next chat"),
        ("escape", "Stop this reply"),
        ("alt+5", "Go to chat 1-9"),
        ("plus", "update faster"),
        ("pgup", "scroll the chat"),
        ("pageup", "scroll the chat"),
        ("find_next", "while find is open"),
        ("*", "a * marks a new phase"),
    ],
)
async def test_the_filter_finds_keys_as_the_settings_write_them(
    bench: Callable[..., Any], key: str, action: str
) -> None:
    async with bench((120, 40)) as it:
        await it.pilot.press("f1")
        await it.until(lambda: "type to filter" in it.screen_text())
        it.app.screen.query_one("Input").value = key
        await it.until(lambda: action in it.screen_text() and "Nothing matches" not in it.screen_text())


@run
async def test_the_keys_that_scroll_the_help_are_named_if_it_does(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        await it.pilot.press("f1")
        await it.until(lambda: "Up Down scroll  Esc close" in it.screen_text())
        await it.pilot.press(*"quit")
        await it.until(lambda: " Esc close" in it.screen_text() and "scroll  Esc" not in it.screen_text())


@run
async def test_a_single_section_is_in_the_left_column(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        await it.pilot.press("f1")
        await it.until(lambda: "type to filter" in it.screen_text())
        it.app.screen.query_one("Input").value = "beam"
        await it.until(lambda: "│ View  " in it.screen_text())
