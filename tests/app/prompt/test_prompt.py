"""The prompt: several lines, emoji, history, and empty messages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.events import Paste

from tests.app.configured import configured
from tests.app.conftest import run


@run
async def test_the_prompt_takes_several_lines_and_grows(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        before = it.main.prompt.size.height
        await it.pilot.press(*"a", "ctrl+j", *"b", "alt+enter", *"c")
        assert it.main.prompt.text == "a\nb\nc"
        await it.until(lambda: it.main.prompt.size.height == before + 2)
        await it.pilot.press("enter")
        await it.until(lambda: it.replies)
        assert it.replies[0].prompt[-1]["content"] == "a\nb\nc"


@run
async def test_skin_tones_are_sent_but_not_drawn(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        it.main.prompt.put("fine 👍🏽!")
        await it.until(lambda: "fine 👍! " in it.screen_text())
        await it.pilot.press("enter")
        await it.until(lambda: it.replies)
        assert it.replies[0].prompt[-1]["content"] == "fine 👍🏽!"


@run
async def test_up_in_an_empty_prompt_recalls_the_last_message(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"))
        await it.pilot.press("up")
        await it.until(lambda: it.main.prompt.text == "hello")
        await it.pilot.press("up")
        assert it.main.prompt.text == "hello"


@run
async def test_up_recalls_earlier_messages_and_down_returns(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        prompt = it.main.prompt
        for text in ("first", "two\nlines"):
            await it.answered(await it.say(text))
        await it.pilot.press("up")
        assert prompt.text == "two\nlines"
        await it.pilot.press("up")  # to the first line
        assert prompt.text == "two\nlines"
        await it.pilot.press("up")
        assert prompt.text == "first"
        await it.pilot.press("up")
        assert prompt.text == "first"
        await it.pilot.press("down")
        assert prompt.text == "two\nlines"
        await it.pilot.press("down")
        assert prompt.text == ""
        await it.pilot.press("down")
        assert prompt.text == ""
        await it.pilot.press("up", "x", "up", "up", "down", "down")
        assert prompt.text == "two\nlinesx"
        await it.pilot.press("ctrl+u", "backspace", "ctrl+u", "up")
        assert prompt.text == "two\nlines"


@run
async def test_up_loads_older_messages(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        store, chat = it.app.store, it.app.chats.active.chat
        for number in range(60):
            store.append(chat.id, "user", f"question {number}")
            store.append(chat.id, "assistant", "answer")
    async with bench() as it:
        assert it.app.chats.active.chat.earlier
        for number in reversed(range(60)):
            await it.pilot.press("up")
            assert it.main.prompt.text == f"question {number}"
        await it.pilot.press("up")
        assert it.main.prompt.text == "question 0"


@run
async def test_an_empty_prompt_is_not_sent(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("enter", "space", "enter")
        await it.pilot.pause()
        assert it.texts() == []


@run
async def test_a_refused_message_can_be_removed_by_undo(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        it.main.prompt.put("x" * 600)  # more than the model takes
        await it.pilot.press("enter")
        await it.until(lambda: it.notices())
        assert it.main.prompt.text == "x" * 600
        await it.pilot.press("y", "ctrl+z", "ctrl+z")
        assert it.main.prompt.text == ""
        await it.pilot.press("ctrl+y")
        assert it.main.prompt.text == "x" * 600


@run
async def test_enter_can_be_the_key_of_a_new_line(bench: Callable[..., Any], tmp_path: Path) -> None:
    """It has other meanings elsewhere: in the monitor, for example."""
    configured(tmp_path, '[keys]\n"prompt.newline" = "enter"\n"prompt.send" = "alt+enter"\n')
    async with bench() as it:
        await it.pilot.press(*"a", "enter", *"b", "alt+enter")
        await it.until(lambda: it.replies)
        assert it.replies[0].prompt[-1]["content"] == "a\nb"
        assert it.notices() == []
        assert "Enter newline" in str(it.main.prompt.border_subtitle)


@run
async def test_a_long_paste_is_undone_and_redone(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("a")
        it.app.post_message(Paste("line\n" * 30))
        await it.until(lambda: it.main.prompt.show_vertical_scrollbar)
        await it.pilot.press("ctrl+z")
        await it.until(lambda: not it.main.prompt.show_vertical_scrollbar)
        assert (it.main.prompt.text, it.main.prompt.cursor_location) == ("a", (0, 1))
        await it.pilot.press("ctrl+y")
        await it.until(lambda: it.main.prompt.show_vertical_scrollbar)
        assert it.main.prompt.cursor_location == (30, 0)
        await it.pilot.press("ctrl+z", "ctrl+z")
        await it.until(lambda: it.main.prompt.text == "")


@run
async def test_text_that_is_cut_or_copied_is_pasted_and_is_in_the_clipboard(
    bench: Callable[..., Any],
) -> None:
    async with bench() as it:
        for key, left in (("ctrl+x", ""), ("ctrl+c", "some text")):
            it.main.prompt.put("some text")
            await it.pilot.press("f7", key)
            assert it.main.prompt.text == left
            await it.until(lambda: it.app.paths.clipboard.exists())
            await it.until(lambda: it.app.paths.clipboard.read_text() == "some text")
            it.app.paths.clipboard.unlink()
            it.main.prompt.put("")
            await it.pilot.press("ctrl+v", "ctrl+v")
            assert it.main.prompt.text == "some textsome text"


@run
async def test_a_short_terminal_says_that_a_message_goes_elsewhere(bench: Callable[..., Any]) -> None:
    async with bench((200, 12)) as it:
        await it.answered(await it.say("hello"))
        await it.pilot.press("f2", "ctrl+n", "alt+a")
        await it.until(lambda: "to all 2 panes: A B" in it.screen_text())
        await it.pilot.press("alt+a")
        await it.until(lambda: "to all" not in it.screen_text())
        await it.pilot.press("alt+1", "alt+e")
        await it.until(lambda: "edit and resend" in it.screen_text())
