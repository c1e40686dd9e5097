"""What another screen on the same chats has written is seen when the person comes back to this one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minichat.chats.model import ReplyStats
from minichat.chats.store import Store
from minichat.shell.paths import locate
from tests.app.conftest import run


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return Store(locate({"HOME": str(tmp_path)}).chats)


def writes(other: Store, chat: int) -> None:
    other.append(chat, "user", "from elsewhere")
    other.append(chat, "assistant", "heard there", stats=ReplyStats(2, 1.0, 0.1, 3, "greedy"))


def comes_back(it: Any) -> None:
    it.app._checked_at -= 60


@run
async def test_what_was_said_there_is_read_here(bench: Callable[..., Any], other: Store) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "good day")
        writes(other, it.app.chats.active.chat.id)
        comes_back(it)
        await it.pilot.press("a")  # where the terminal does not tell that it has the focus again
        await it.until(lambda: "heard there" in it.screen_text())
        reply = await it.say("and here?")
        said = [turn["content"] for turn in reply.prompt]
        assert said == ["hello", "good day", "from elsewhere", "heard there", "and here?"]


@run
async def test_nothing_that_was_said_there_is_lost_here(bench: Callable[..., Any], other: Store) -> None:
    """Drawing a reply again takes away what comes after it."""
    async with bench() as it:
        await it.answered(await it.say("hello"), "good day")
        chat = it.app.chats.active.chat.id
        writes(other, chat)
        it.app.on_app_focus()
        await it.pilot.press("alt+r")
        await it.until(lambda: len(it.replies) == 2)
        await it.answered(it.replies[-1], "drawn again")
        said = [each.text for each in other.chat(chat).messages]
        assert said == ["hello", "good day", "from elsewhere", "drawn again"]


@run
async def test_a_title_a_prompt_and_a_decoding_come_along(bench: Callable[..., Any], other: Store) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"))
        chat = it.app.chats.active.chat
        other.change_chat(chat.id, title="renamed", system="rhyme", params=chat.params.changed(temperature=0))
        it.app.on_app_focus()
        await it.until(lambda: "renamed" in it.screen_text())
        reply = await it.say("more")
        assert reply.prompt[0] == {"role": "system", "content": "rhyme"}
        assert reply.params.temperature == 0


@run
async def test_a_reply_that_runs_here_is_not_disturbed(bench: Callable[..., Any], other: Store) -> None:
    async with bench() as it:
        reply = await it.say("hello")
        reply.say("half ")
        await it.until(lambda: "half" in it.screen_text())
        writes(other, it.app.chats.active.chat.id)
        it.app.on_app_focus()
        await it.answered(reply, "whole")
        assert it.texts() == [("user", "hello", "done"), ("assistant", "half whole", "done")]
        it.app.on_app_focus()
        await it.until(lambda: "heard there" in it.screen_text())


@run
async def test_a_chat_that_was_deleted_there_stays_as_it_was(bench: Callable[..., Any], other: Store) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "good day")
        other.delete_chat(it.app.chats.active.chat.id)
        it.app.on_app_focus()
        assert it.texts()[-1] == ("assistant", "good day", "done")
        assert not it.notices()
