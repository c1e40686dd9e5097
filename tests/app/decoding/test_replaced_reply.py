"""The line of tokens is that of a reply in the chat: it closes when another version takes its place."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from minichat.chats.model import Message
from minichat.chats.store import Store
from minichat.shell.paths import locate
from tests.app.conftest import Clock, run
from tests.app.decoding.test_picking import letters, replied, send


@run
async def test_switching_to_another_version_closes_the_line(bench: Callable[..., Any]) -> None:
    async with bench((120, 40), backend=letters()) as it:
        await replied(it, "abc", 0.5)
        await it.pilot.press("alt+r")
        await it.until(lambda: len(it.replies) == 2)
        send(it.replies[1], "defg", 0.5)
        it.replies[1].end()
        await it.until(lambda: not it.app.chats.streaming)
        await it.pilot.press("alt+c")
        await it.until(lambda: "token 1 of 4" in it.screen_text())
        await it.command("reply.earlier")
        await it.until(lambda: not it.picker.display and it.main.prompt.has_focus)
        await it.pilot.press("alt+c")
        await it.until(lambda: "token 1 of 3" in it.screen_text())


@run
async def test_a_reply_that_another_screen_replaces_closes_the_line(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    async with bench((120, 40), backend=letters(), clock=Clock()) as it:
        await replied(it, "abc", 0.5)
        await it.pilot.press("alt+c")
        await it.until(lambda: "token 1 of 3" in it.screen_text())
        chat, other = it.app.chats.active.chat, Store(locate({"HOME": str(tmp_path)}).chats)
        newest = chat.messages[-1].id
        other.add_turn(chat.id, newest, (Message(0, "assistant", "written there"),), instead_of=newest)
        it.app.start.clock.now += 60
        await it.pilot.press("right")
        await it.until(lambda: "written there" in it.screen_text())
        await it.until(lambda: not it.picker.display and it.main.prompt.has_focus)
