"""A chat is deleted or closed, and can be restored where that is offered."""

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest

from minichat.features.chats import chats
from minichat.ui.picture import strips_of
from tests.app.chats.test_chats import titles, two_chats
from tests.app.configured import configured
from tests.app.conftest import run


@run
async def test_close_and_undo(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await two_chats(it)
        await it.pilot.press("alt+w")
        assert titles(it) == ["first"]
        await it.pilot.press("alt+z")
        assert titles(it) == ["first", "second"]
        assert it.texts()[-1] == ("assistant", "fine", "done")


@run
async def test_a_long_title_leaves_the_question_whole(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"))
        it.app.chats.active.rename("a title " * 12)
        await it.pilot.press("alt+d")
        await it.until(lambda: 'Delete "a title a title a title a…" and its 2 messages?' in it.screen_text())


@run
async def test_the_question_tells_which_fork_of_a_long_title_it_is_about(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"))
        it.app.chats.active.rename("a title " * 4 + "(fork 12)")
        await it.pilot.press("alt+d")
        await it.until(lambda: 'Delete "a title a title a…(fork 12)" and its 2 messages?' in it.screen_text())


@run
async def test_a_chat_is_deleted_after_confirmation(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await two_chats(it)
        await it.pilot.press("alt+d")
        await it.until(lambda: 'Delete "second" and its 2 messages?' in it.screen_text())
        await it.pilot.press("enter")  # which keeps it
        await it.until(lambda: it.app.focused is it.main.prompt)
        assert titles(it) == ["first", "second"]
        key = it.app.chats.active.chat.key
        await it.pilot.press("alt+d", "down", "enter")
        await it.until(lambda: titles(it) == ["first"])
        assert it.backend.forgotten == [key], "its blocks on disk are not deleted"
        assert [each.title for each in it.app.store.listing()] == ["first"]
        await it.pilot.press("alt+z")
        await it.until(lambda: "There is no closed chat" in it.notices())
    async with bench() as it:
        assert titles(it) == ["first"]


@run
async def test_a_chat_whose_blocks_cannot_be_deleted_is_gone_all_the_same(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await two_chats(it)

        async def forget_chat(chat: str) -> None:
            raise OSError(30, "Read-only file system", "/cache/minichat-kv")

        it.backend.forget_chat = forget_chat
        await it.pilot.press("alt+d", "down", "enter")
        await it.until(lambda: titles(it) == ["first"])
        await it.until(lambda: "/cache/minichat-kv: Read-only file system" in it.notices())
        assert it.app.screen is it.main
        assert it.texts()[-1] == ("assistant", "fine", "done")
        [key] = it.app.store.deleted()
    async with bench() as it:
        await it.until(lambda: it.backend.forgotten == [key])
        await it.until(lambda: not it.app.store.deleted())


@run
async def test_a_chat_deleted_beside_a_server_is_forgotten_by_the_next_engine_here(
    bench: Callable[..., Any],
) -> None:
    async with bench() as it:
        await two_chats(it)
        it.backend.forget_chat = AsyncMock(return_value=False)
        await it.pilot.press("alt+d", "down", "enter")
        await it.until(lambda: it.backend.forget_chat.await_count == 1)
        [key] = it.app.store.deleted()
    async with bench() as it:
        await it.until(lambda: it.backend.forgotten == [key])


@run
async def test_a_deleted_chat_leaves_the_screen_before_a_slow_disk_answers(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await two_chats(it)
        answers = asyncio.Event()

        async def forget_chat(chat: str) -> None:
            await answers.wait()

        it.backend.forget_chat = forget_chat
        await it.pilot.press("alt+d", "down", "enter")
        await it.until(lambda: titles(it) == ["first"] and "Chat deleted" in it.notices())
        answers.set()


@run
async def test_deleting_stops_its_reply_and_the_last_chat_leaves_an_empty_one(
    bench: Callable[..., Any],
) -> None:
    async with bench() as it:
        await it.say("only")
        await it.pilot.press("alt+d", "down", "enter")
        await it.until(lambda: it.replies[0].finished)
        await it.until(lambda: titles(it) == [""])
        assert [each.title for each in it.app.store.listing()] == [""]


@run
async def test_a_long_title_has_one_line_in_the_list(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        it.app.chats.active.rename("x" * 300)
        await it.pilot.press("ctrl+o")
        await it.until(lambda: "0 messages" in it.screen_text())
        (line,) = (row for row in it.screen_text().splitlines() if "0 messages" in row)
        assert " A   x" in line and "x…  0 messages" in line


@run
async def test_open_and_closed_chats_are_deleted_from_the_list(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await two_chats(it)
        await it.answered(await it.say("more"))
        await it.pilot.press("alt+1", "alt+w", *"half")  # close the first chat; filter the list
        await it.pilot.press("ctrl+o", *"fir")
        await it.until(lambda: "Alt+D delete  Esc cancel" in it.screen_text() and "first" in it.screen_text())
        await it.pilot.press("alt+d")
        await it.until(lambda: 'Delete "first" and its 2 messages?' in it.screen_text())
        await it.pilot.press("down", "enter")
        await it.until(lambda: [each.title for each in it.app.store.listing()] == ["second"])
        assert len(it.backend.forgotten) == 1, "a closed chat's blocks on disk are not deleted"
        await it.until(lambda: 'Delete "first' not in it.screen_text())
        assert "first" not in "".join(it.screen_text().splitlines()[1:-1]).replace("fir", "", 1)
        await it.pilot.press("escape")
        await it.until(lambda: it.app.focused is it.main.prompt)
        assert it.main.prompt.text == "half"

        await it.pilot.press("ctrl+n", *"kept", "ctrl+o", "alt+d", "down", "enter")
        await it.until(lambda: len(it.app.chats) == 1)
        assert it.main.prompt.text in ("kept", "half")


@run
@pytest.mark.parametrize("keys", [["alt+w"], ["alt+d", "down", "enter"]])
async def test_a_chat_deleted_by_another_window_can_be_closed(
    bench: Callable[..., Any], keys: list[str]
) -> None:
    async with bench() as it:
        await two_chats(it)
        it.app.store.delete_chat(it.app.chats.active.chat.id)
        await it.pilot.press(*keys)
        await it.until(lambda: titles(it) == ["first"])
        assert it.app.screen is it.main


@run
async def test_a_dialog_can_be_drawn_at_any_moment(bench: Callable[..., Any]) -> None:
    """The screen behind it may be drawn from a layout that has a pane which is already gone."""
    async with bench() as it:
        await it.answered(await it.say("first"))
        await it.pilot.press("ctrl+o")
        pane = it.main.pane
        await chats.delete(it.app.context, it.app.chats.active.chat.id)
        while pane.is_running or pane.is_attached:
            strips_of(it.app.screen)
            strips_of(it.main)
            await asyncio.sleep(0)
        assert titles(it) == [""]


@run
async def test_the_delete_key_can_be_remapped(bench: Callable[..., Any], tmp_path: Any) -> None:
    configured(tmp_path, '[keys]\n"chat.delete" = "alt+q"\n')
    async with bench() as it:
        await it.answered(await it.say("first"))
        await it.pilot.press("alt+d")
        await it.pilot.press("alt+q")
        await it.until(lambda: 'Delete "first" and its 2 messages?' in it.screen_text())
        await it.pilot.press("escape", "ctrl+o")
        await it.until(lambda: "Alt+Q delete" in it.screen_text())
        await it.pilot.press("alt+q", "down", "enter")
        await it.until(lambda: titles(it) == [""])


@run
async def test_closing_the_last_chat_leaves_an_empty_one(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.say("first")
        await it.pilot.press("alt+w")
        await it.until(lambda: it.replies[0].finished)
        assert titles(it) == [""]
        assert "new chat" in it.screen_text()
