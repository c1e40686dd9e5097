"""The list of all chats: when each was used, and that it is not complete."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from textual.widgets import OptionList

from tests.app.conftest import run

NOON = 1_795_262_400.0  # 21 November 2026


@run
async def test_chats_say_when_they_were_used(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minichat.ui.monitor.figures.wall_clock", lambda: NOON)
    moment = NOON
    async with bench(wall_clock=lambda: moment) as it:
        store = it.app.store
        for title, days in ("older", 400), ("old", 7), ("new", 0):
            moment = NOON - 86_400 * days
            store.append(store.create_chat(title).id, "user", "hello")
        moment = NOON - 86_400 * 3
        store.close_chat(store.create_chat("shut").id)
        await it.pilot.press("ctrl+o")
        await it.until(lambda: "older  1 message" in it.screen_text())
        found = dict(re.findall(r"(\w+)  1 message  (.*?) +│", it.screen_text()))
        assert found.pop("new").endswith(":00")
        assert found == {"old": "Nov 14", "older": "2025-10-17"}
        assert "shut  closed  Nov 18 " in it.screen_text()


@run
async def test_a_list_without_the_oldest_chats_says_so(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minichat.features.chats.jump._LISTED", 2)
    notice = "These are the newest 2. Type to find others"
    async with bench() as it:
        it.app.store.create_chat("second")
        await it.pilot.press("ctrl+o")
        await it.until(lambda: "second" in it.screen_text())
        assert notice not in it.screen_text()
        it.app.store.create_chat("third")
        await it.pilot.press("escape", "ctrl+o")
        await it.until(lambda: notice in it.screen_text())
        assert "third" in it.screen_text() and it.app.screen.query_one(OptionList).option_count == 2


@run
async def test_a_search_that_found_all_does_not_speak_of_others(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minichat.features.chats.jump._FOUND", 2)
    notice = "These are the newest 2. Type more to find others"
    async with bench() as it:
        chat = it.app.store.create_chat("fruit")
        for text in "apple one", "apple two":
            it.app.store.append(chat.id, "user", text)
        await it.pilot.press("ctrl+o", *"apple")
        await it.until(lambda: "apple one" in it.screen_text())
        assert notice not in it.screen_text()
        it.app.store.append(chat.id, "user", "apple three")
        await it.pilot.press("space")
        await it.until(lambda: notice in it.screen_text())
        assert "apple one" not in it.screen_text()


@run
async def test_chats_of_today_get_their_date_when_the_day_ends(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minichat.ui.monitor.figures.CALENDAR_EVERY", 0.05)
    times = {"now": NOON}
    monkeypatch.setattr("minichat.ui.monitor.figures.wall_clock", lambda: times["now"])
    async with bench(wall_clock=lambda: NOON) as it:
        store = it.app.store
        for title in "first", "second":
            store.append(store.create_chat(title).id, "user", "hello")
        await it.pilot.press("ctrl+o", "down")
        await it.until(lambda: re.search(r"second  1 message  \d\d:00", it.screen_text()))
        chosen = it.app.screen.query_one(OptionList).highlighted
        assert chosen
        times["now"] += 86_400
        await it.until(lambda: "second  1 message  Nov 21" in it.screen_text())
        assert it.app.screen.query_one(OptionList).highlighted == chosen


@run
@pytest.mark.parametrize("waits", [False, True])
async def test_a_search_of_a_long_history_goes_on_while_one_types(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    monkeypatch.setattr("minichat.chats.store._PIECE", 1)
    monkeypatch.setattr("minichat.features.chats.jump._AT_ONCE", -1.0)
    monkeypatch.setattr("minichat.features.chats.jump._PAUSE", 0.2)
    async with bench() as it:
        store = it.app.store
        first, second = store.create_chat("first"), store.create_chat("second")
        for chat, text in (first, "an apple"), (second, "pears"), (second, "pears"), (second, "apricots"):
            store.append(chat.id, "user", text)
        await it.pilot.press("ctrl+o", "a", "p", "p")
        assert "Searching ..." in it.screen_text() and "an apple" not in it.screen_text()
        if waits:
            await it.pilot.press("enter")
            await it.until(lambda: it.app.chats.active.chat.title == "first")
        else:
            await it.until(lambda: "an apple" in it.screen_text())
            await it.until(lambda: "Searching ..." not in it.screen_text())
            await it.pilot.press("q")
            await it.until(lambda: "No title or message matches" in it.screen_text())


@run
async def test_the_date_of_a_long_chat_is_shown_beside_a_long_title(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minichat.ui.monitor.figures.wall_clock", lambda: NOON)
    monkeypatch.setattr("minichat.features.chats.jump.plural", lambda count, word: f"1,00{count} {word}s")
    async with bench((80, 24), wall_clock=lambda: NOON - 86_400 * 400) as it:
        for number in range(20):
            store = it.app.store
            store.append(store.create_chat(f"title {number} {'long ' * 90}").id, "user", "hello")
        await it.pilot.press("ctrl+o")
        await it.until(lambda: "1,001 messages  2025-10-17" in it.screen_text())


@run
@pytest.mark.parametrize("key", ["enter", "alt+d"])
async def test_a_listed_chat_that_another_screen_deletes_is_no_failure(
    bench: Callable[..., Any], key: str
) -> None:
    async with bench() as it:
        gone = it.app.store.create_chat("gone").id
        it.app.store.append(gone, "user", "hello")
        await it.pilot.press("ctrl+o")
        await it.until(lambda: "gone" in it.screen_text())
        it.app.store.delete_chat(gone)
        await it.pilot.press(key)
        await it.until(lambda: it.notices() == ["The chat was deleted, possibly in another window"])
        assert len(it.app.screen_stack) == (1 if key == "enter" else 2)


@run
async def test_the_letter_of_a_closed_chat_is_only_that_of_the_one_that_has_it_now(
    bench: Callable[..., Any],
) -> None:
    async with bench() as it:
        await it.answered(await it.say("first"))
        await it.pilot.press("ctrl+n")
        await it.answered(await it.say("second"))
        await it.pilot.press("alt+w", "ctrl+n")
        await it.answered(await it.say("third"))
        await it.pilot.press("ctrl+o")
        await it.until(lambda: "B   third" in it.screen_text())
        assert "B   second" not in it.screen_text() and "second  closed" in it.screen_text()
