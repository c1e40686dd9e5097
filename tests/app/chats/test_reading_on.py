"""A chat that is shown again is where the user was reading."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.app.conftest import run


async def read_up(it: Any) -> None:
    """Open a chat with more messages than are read at first, and scroll to its start."""
    store = it.app.store
    chat = store.create_chat("long")
    for number in range(80):
        store.append(chat.id, "user", f"Message {number}." + "\n\nhay" * 20)
    store.close_chat(chat.id)
    it.main.follow_chat(it.app.chats.reopen(chat.id))
    await it.until(lambda: "hay" in it.screen_text())
    it.main.transcript.focus()
    await it.pilot.press("home")
    await it.until(lambda: "Message 0." in it.screen_text())
    await it.pilot.press("pagedown", "pagedown")
    await it.until(lambda: "Message 1." in it.screen_text())


def seen(it: Any) -> list[str]:
    return [line[:20].rstrip() for line in it.screen_text().splitlines()[1:12]]


@run
async def test_a_reopened_chat(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await read_up(it)
        before = seen(it)
        await it.pilot.press("alt+w")
        await it.until(lambda: seen(it) != before)
        await it.pilot.press("alt+z")
        await it.until(lambda: seen(it) == before)
        await it.pilot.press("alt+w", "ctrl+o", *"message 70.", "enter")
        await it.until(lambda: "Message 70." in it.screen_text())


@run
async def test_a_chat_whose_pane_was_removed(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await read_up(it)
        before, long = seen(it), it.app.chats.active
        for _ in range(7):
            it.main.new_chat()
            await it.pilot.pause()
        assert long.view is None
        it.main.go_to(long)
        await it.until(lambda: seen(it) == before)


@run
async def test_a_chat_whose_end_was_followed_is_at_its_end(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await read_up(it)
        await it.pilot.press("end")
        await it.until(lambda: it.main.transcript.following)
        await it.pilot.press("alt+w", "alt+z")
        await it.until(lambda: it.app.chats.active.chat.title == "long" and "hay" in it.screen_text())
        assert it.main.transcript.following


@run
async def test_a_place_waits_for_its_message_to_be_read(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench() as it:
        await read_up(it)
        before = seen(it)
        monkeypatch.setattr("minichat.ui.transcript.window.budget", lambda: lambda: True)  # a busy machine
        await it.pilot.press("alt+w", "alt+z")
        await it.until(lambda: seen(it) == before)


@run
async def test_new_lines_name_the_key_that_follows_them_in_the_active_chat_only(
    bench: Callable[..., Any],
) -> None:
    async with bench((200, 50)) as it:
        reply = await it.say("hello")
        reply.say("hay\n\n" * 60)
        await it.until(lambda: "hay" in it.screen_text())
        it.main.transcript.focus()
        await it.pilot.press("home")
        reply.say("hay\n\n" * 3)
        await it.until(lambda: "new lines, End to follow" in it.screen_text())
        await it.pilot.press("ctrl+n")
        await it.until(lambda: "new lines --" in it.screen_text())
        await it.pilot.press("alt+1")
        await it.until(lambda: "new lines, End to follow" in it.screen_text())
        await it.answered(reply)
