"""Keys that the help and the bottom line show say why they do nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.app.configured import configured
from tests.app.conftest import run


@run
@pytest.mark.parametrize(
    ("key", "notice"),
    [
        ("m", "There is no message here"),
        ("y", "There is nothing to copy"),
        ("n", "There is no match to go to"),
        ("N", "There is no match to go to"),
        ("r", "There is no failed reply to retry now"),
        ("enter", "There is no reasoning here"),
    ],
)
async def test_in_a_chat(bench: Callable[..., Any], key: str, notice: str) -> None:
    async with bench((80, 24)) as it:
        await it.pilot.press("tab", key)
        await it.until(lambda: it.notices() == [notice])


@run
@pytest.mark.parametrize(
    ("key", "notice"),
    [
        ("x", "There is no request to abort"),
        ("P", "There is no request to preempt"),
        ("r", "The engine has no other replica"),
        ("t", "The graphs will show 2 min"),
        ("l", "The map has only letters on this terminal"),
    ],
)
async def test_in_the_monitor(bench: Callable[..., Any], key: str, notice: str) -> None:
    async with bench((120, 40)) as it:
        await it.pilot.press("alt+m", key)
        await it.until(lambda: it.notices() == [notice])


@run
@pytest.mark.parametrize("key", ["ctrl+pagedown", "alt+h"])
async def test_with_one_chat(bench: Callable[..., Any], key: str) -> None:
    async with bench((80, 24)) as it:
        await it.pilot.press(key)
        await it.until(lambda: it.notices() == ["There is no other chat. ^N opens one"])
        await it.pilot.press("ctrl+n", key)
        assert len(it.notices()) == 1


@run
async def test_an_empty_prompt_speaks_of_no_reasoning_where_there_is_none(bench: Callable[..., Any]) -> None:
    """Enter sends there, and shows reasoning only as a shortcut."""
    async with bench((80, 24)) as it:
        await it.pilot.press("enter")
        await it.answered(await it.say("hello"))
        await it.pilot.press("enter")
        assert it.notices() == []


@run
async def test_without_a_reply(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        await it.command("reply.stop_all")
        await it.until(lambda: it.notices() == ["No reply is running"])
        reply = await it.say("hello")
        await it.command("reply.stop_all")
        await it.until(lambda: reply.finished)
        assert len(it.notices()) == 1


@run
async def test_the_palette_stops_a_reply_and_nothing_else(bench: Callable[..., Any]) -> None:
    async def choose() -> None:
        await it.pilot.press("ctrl+p", *"stopthis", "enter")
        await it.until(lambda: it.app.screen is it.main)

    async with bench((120, 40)) as it:
        await it.pilot.press("escape")
        assert it.notices() == []
        await it.pilot.press("f3")
        await choose()
        await it.until(lambda: it.notices() == ["No reply is running in this chat"])
        it.main.prompt.focus()
        reply = await it.say("hello")
        await choose()
        await it.until(lambda: reply.finished)
        assert it.drawer.display
        assert len(it.notices()) == 1


@run
async def test_the_end_is_followed_already(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        await it.command("view.follow")
        await it.until(lambda: it.notices() == ["The end of the chat is followed already"])


@run
async def test_the_map_is_hidden(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        await it.pilot.press("alt+m", "2", "o")
        await it.until(lambda: it.notices() == ["The map will show blocks by session"])
        await it.pilot.press("c")
        await it.until(lambda: it.notices()[1:] == ["The map will show blocks with color by age"])


@run
@pytest.mark.parametrize(
    ("command", "title"),
    [("reply.earlier", "Switch to another reply"), ("engine.replicas", "Drain, stop or start a replica")],
)
async def test_a_key_that_the_settings_gave_to_a_command_that_is_not_offered(
    bench: Callable[..., Any], tmp_path: Path, command: str, title: str
) -> None:
    configured(tmp_path, f'[keys]\n{command} = "f9"\n')
    async with bench((80, 24)) as it:
        await it.pilot.press("f9")
        await it.until(lambda: it.notices() == [f"Not available now: {title}"])
