"""What becomes of a reply that is regenerated."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.api.params import SamplingParams
from engine.api.request import Finish
from minichat.features.palette import entries
from minichat.shell.paths import locate
from minichat.ui.sending import ANOTHER
from tests.app.conftest import run

_GOOD = [("user", "hello", "done"), ("assistant", "a good reply", "done")]
_KEPT = "Kept the earlier reply. To see the stopped one: ^P, Switch to another reply"


async def _regenerate(it: Any, text: str = "") -> Any:
    asked = len(it.replies)
    await it.pilot.press("alt+r")
    await it.until(lambda: len(it.replies) > asked)
    if text:
        it.replies[-1].say(text)
        await it.until(lambda: text in it.screen_text())
    return it.replies[-1]


@run
async def test_a_stopped_regeneration_brings_the_complete_reply_back(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "a good reply")
        await _regenerate(it, "a stub")
        await it.pilot.press("escape")
        await it.until(lambda: it.texts() == _GOOD)
        assert "a good reply" in it.screen_text() and "a stub" not in it.screen_text()
        assert [each.text for each in it.app.store.history(it.app.chats.active.chat.id)] == [
            "hello",
            "a good reply",
        ]
        await it.until(lambda: it.notices() == [_KEPT])
        await it.command("reply.earlier")
        assert it.texts()[-1] == ("assistant", "a stub", "stopped")
        await it.command("reply.earlier")
        assert it.texts() == _GOOD
    async with bench() as it:
        assert it.texts() == _GOOD


@run
async def test_quitting_brings_it_back_too(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "a good reply")
        await _regenerate(it)
        await it.app.end(0)
    async with bench() as it:
        assert it.texts() == _GOOD


@run
async def test_it_brings_back_what_followed_the_reply(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "a good reply")
        await it.answered(await it.say("and now?"), "the end")
        active = it.app.chats.active
        before = it.texts()
        active.retry(active.chat.messages[1].id)
        await it.until(lambda: len(it.replies) == 3)
        await it.pilot.press("escape")
        await it.until(lambda: it.texts() == before)


@run
async def test_the_versions_of_a_reply_take_turns_until_the_chat_goes_on(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "one")
        await it.answered(await _regenerate(it), "two")
        await it.answered(await _regenerate(it), "three")
        seen = []
        for _ in range(3):
            await it.command("reply.earlier")
            seen.append(it.texts()[-1][1])
        assert seen == ["two", "one", "three"]
        await it.command("reply.earlier")
        await it.answered(await it.say("more"), "fine")
        assert [text for _, text, _ in it.texts()] == ["hello", "two", "more", "fine"]
        await it.command("reply.earlier")
        assert [text for _, text, _ in it.texts()] == ["hello", "two", "more", "fine"]
        stored = it.app.store.history(it.app.chats.active.chat.id)
        assert [each.text for each in stored] == ["hello", "two", "more", "fine"]


@run
async def test_the_first_switch_shows_the_version_that_was_stopped_and_the_next_ones_the_others(
    bench: Callable[..., Any],
) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "one")
        await it.answered(await _regenerate(it), "two")
        await _regenerate(it, "a stub")
        await it.pilot.press("escape")
        await it.until(lambda: it.texts()[-1][1] == "two")
        await it.until(lambda: _KEPT in it.notices())
        for text, number in (("a stub", 3), ("one", 1), ("two", 2), ("a stub", 3)):
            await it.command("reply.earlier")
            assert it.texts()[-1][1] == text
            await it.until(lambda: it.notices()[-1] == f"Version {number} of 3")  # noqa: B023


@run
async def test_the_palette_offers_another_reply_if_there_is_one(bench: Callable[..., Any]) -> None:
    def offered() -> bool:
        return any(each.title == ANOTHER for each in entries(it.app.context))

    async with bench() as it:
        seen = [offered()]
        await it.answered(await it.say("hello"), "one")
        seen.append(offered())
        await it.answered(await _regenerate(it), "two")
        seen.append(offered())
        await it.answered(await it.say("more"), "fine")
        seen.append(offered())
        assert seen == [False, False, True, False]


@run
async def test_an_edited_message_comes_back_with_its_reply(bench: Callable[..., Any]) -> None:
    first = [("user", "hello", "done"), ("assistant", "one", "done"), ("user", "more", "done")]
    first.append(("assistant", "two", "done"))
    other = [("user", "goodbye", "done"), ("assistant", "three", "done")]
    async with bench((100, 30)) as it:
        await it.answered(await it.say("hello"), "one")
        await it.answered(await it.say("more"), "two")
        active = it.app.chats.active
        active.edit(active.messages[0].id)
        await it.answered(await it.say("goodbye"), "three")
        way = "To see it: ^P, Switch to another reply"
        kept = "Kept what you edited until the chat goes on or the reply is regenerated"
        await it.until(lambda: it.notices() == [f"{kept}. {way}"])
        assert it.texts() == other
        await it.command("reply.earlier")
        assert it.texts() == first
        assert (active.chat.title, it.app.store.chat(active.chat.id).title) == ("hello", "hello")
        await it.command("reply.earlier")
        assert it.texts() == other and active.chat.title == "goodbye"
    async with bench() as it:
        assert it.texts() == other
        await it.command("reply.earlier")
        assert it.texts() == first
        await it.answered(await it.say("go on"), "four")
        assert it.app.store.replaced(it.app.chats.active.chat.id) == (0, [])


@run
async def test_a_stopped_reply_to_an_edited_message_brings_nothing_back(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "one")
        it.app.chats.active.edit()
        (await it.say("goodbye")).say("a stub")
        await it.until(lambda: "a stub" in it.screen_text())
        await it.pilot.press("escape")
        await it.until(
            lambda: it.texts() == [("user", "goodbye", "done"), ("assistant", "a stub", "stopped")]
        )
        it.app.chats.active.edit()
        await it.answered(await it.say("again"), "two")
        await it.command("reply.earlier")
        assert it.texts()[0][1] == "goodbye"
    async with bench() as it:
        for text in ("hello", "again", "goodbye"):
            await it.command("reply.earlier")
            assert it.texts()[0][1] == text


@run
async def test_a_stopped_reply_is_no_better_than_the_new_one(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        (await it.say("hello")).say("a stub")
        await it.until(lambda: "a stub" in it.screen_text())
        await it.pilot.press("escape")
        await it.until(lambda: not it.app.chats.streaming)
        await _regenerate(it, "more than that")
        await it.pilot.press("escape")
        await it.until(lambda: it.texts()[-1] == ("assistant", "more than that", "stopped"))
        await it.command("reply.earlier")
        assert it.texts()[-1][1] == "a stub"
        assert not it.notices()


@run
@pytest.mark.parametrize("text", ["", "a stub"])
async def test_a_failed_regeneration_says_why_and_brings_the_complete_reply_back(
    bench: Callable[..., Any], text: str
) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "a good reply")
        (await _regenerate(it, text)).end(Finish.FAILED, "no room")
        await it.until(lambda: it.texts() == _GOOD)
        await it.until(lambda: it.notices() == ["A keeps the earlier reply: no room"])
        await it.command("reply.earlier")
        assert (it.texts()[-1][1:] == (text, "failed")) is bool(text)


@run
async def test_a_running_reply_has_to_be_stopped_first(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "a good reply")
        await _regenerate(it, "new")
        await it.command("reply.earlier")
        await it.until(lambda: it.notices() == ["A is still replying. Press Esc to stop"])
        assert it.texts()[-1][1] == ""
        await it.answered(it.replies[-1])


@run
async def test_a_killed_regeneration_brings_the_complete_reply_back(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "a good reply")
        await it.answered(await it.say("more"), "the end")
        good = it.texts()
        it.app.chats.active.retry(it.app.chats.active.messages[1].id)
        await it.until(lambda: len(it.replies) == 3)
        it.replies[-1].say("a stub")
        await it.until(lambda: "a stub" in it.screen_text())
        place, copy = locate({"HOME": str(tmp_path)}).chats, tmp_path / "copy"
        with sqlite3.connect(place) as there, sqlite3.connect(copy) as here:
            there.backup(here)
    for each in place.parent.glob(f"{place.name}*"):
        each.unlink()
    copy.rename(place)  # what a kill would leave
    async with bench() as it:
        await it.until(lambda: it.texts() == good)
    async with bench() as it:
        assert it.texts() == good
        await it.answered(await it.say("and more"), "fine")
        assert it.app.store.replaced(it.app.chats.active.chat.id) == (0, [])


@run
async def test_what_was_switched_back_from_is_there_after_a_restart(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        for number in range(12):
            await it.answered(await it.say(f"message {number}"), f"reply {number}")
        long, active = it.texts(), it.app.chats.active
        active.retry(active.messages[1].id)
        await it.until(lambda: len(it.replies) == 13)
        await it.answered(it.replies[-1], "another")
        short = it.texts()
        await it.command("reply.earlier")
        assert it.texts() == long and len(short) == 2
    async with bench() as it:
        assert it.texts() == long
        await it.command("reply.earlier")
        assert it.texts() == short


@run
async def test_a_last_message_without_a_reply_gets_one(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "a good reply")
        await it.answered(await it.say("more"), "another")
        fork = it.app.chats.fork(it.app.chats.active.chat.messages[2].id)
        it.main.follow_chat(fork)
        await it.until(lambda: it.texts() == [*_GOOD, ("user", "more", "done")])
        await it.answered(await _regenerate(it), "a reply at last")
        said = [*_GOOD, ("user", "more", "done"), ("assistant", "a reply at last", "done")]
        await it.until(lambda: it.texts() == said)
        assert [each["content"] for each in it.replies[-1].prompt] == ["hello", "a good reply", "more"]


@run
async def test_an_edit_says_which_versions_of_the_reply_it_gives_up(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "one")
        await it.pilot.press("alt+e")
        assert it.notices() == []
        await it.pilot.press("escape")
        await it.answered(await _regenerate(it), "two")
        await it.answered(await _regenerate(it), "three")
        await it.pilot.press("alt+e")
        way = "Alt+K first leaves all in this chat"
        assert it.notices()[-1] == f"Sending this gives up the 2 other versions of the reply; {way}"
        await it.pilot.press("escape", "alt+k")
        await it.until(lambda: len(it.app.chats) == 2)
        await it.pilot.press("alt+e")
        await it.answered(await it.say("goodbye"), "four")
        await it.pilot.press("alt+1")
        for text in ("two", "one", "three"):
            await it.command("reply.earlier")
            assert it.texts()[-1][1] == text


@run
@pytest.mark.parametrize("most", [None, 150])
async def test_a_reply_that_reached_its_limit_is_complete(
    bench: Callable[..., Any], most: int | None
) -> None:
    async with bench() as it:
        it.app.chats.active.tune(SamplingParams(max_tokens=most))
        reply = await it.say("hello")
        reply.say("a long reply")
        reply.end(Finish.LENGTH)
        await it.until(lambda: not it.app.chats.active.streaming)
        await _regenerate(it, "a stub")
        await it.pilot.press("escape")
        await it.until(lambda: it.notices() == [_KEPT])
        assert it.texts()[-1] == ("assistant", "a long reply", "stopped")
