"""The chat list beside many chats: title, state and rate of each; pinned chats first."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.events import MouseScrollDown, MouseScrollUp

from engine.api.events import Delta
from engine.api.params import SamplingParams
from engine.api.request import Finish
from minichat.features.chats.overview import ChatOverview, state_of
from minichat.shell.remembered import Remembered
from minichat.ui.panes.pane import ChatPane
from tests.app.conftest import Bench, run, snapshot
from tests.cases import SIZES


def listed(it: Bench) -> list[str]:
    """The lines of the list, stripped."""
    overview = it.app.context.part(ChatOverview)
    return [line.strip() for line in overview.render().plain.splitlines()]


def titles(it: Bench) -> list[str]:
    return [each.chat.title for each in it.app.chats]


async def open_chats(it: Bench, *names: str) -> None:
    for name in names:
        await it.pilot.press("ctrl+n")
        await it.until(lambda: it.app.chats.active.chat.title == "")
        it.app.chats.active.rename(name)


@run
async def test_a_reply_without_a_certain_token_has_one_word(bench: Callable[..., Any]) -> None:
    """Of the best of several replies, text is shown before its tokens are certain."""
    async with bench((220, 40), params=SamplingParams(best_of=3)) as it:
        await it.pilot.press("ctrl+n", "alt+g")
        best, search = it.app.chats
        search.tune(SamplingParams(beams=4))
        for each in (best, search):
            each.send("hello")
        await it.until(lambda: len(it.replies) == 2)
        assert [state_of(each)[0] for each in (best, search)] == ["waiting"] * 2, "as in the queue"
        in_queue = "0 waiting"
        await it.until(lambda: it.screen_text().replace(in_queue, "").count("waiting") == 6)
        for reply in it.replies:
            reply.send(Delta(reply.id, tail="some text"))
        await it.until(lambda: best.run.begun and search.run.begun)
        for each, word in ((best, "writing"), (search, "searching")):
            pane = next(pane for pane in it.main.query(ChatPane) if pane.conversation is each)
            pane.show_figures()  # at a running reply they are updated in turn
            assert pane.head.figures == state_of(each)[0] == word
        await it.until(
            lambda: any("writing" in row and "searching" in row for row in it.screen_text().splitlines()[3:])
        )


@run
@pytest.mark.parametrize("size", SIZES)
async def test_it_shows_the_state_of_each_chat(bench: Callable[..., Any], size: tuple[int, int]) -> None:
    async with bench(size) as it:
        it.app.chats.active.rename("first")
        failing = await it.say("one")
        await open_chats(it, "second", "third")
        reply = await it.say("two")
        await it.pilot.press("alt+g")
        await it.until(lambda: it.app.context.part(ChatOverview).has_focus)
        assert listed(it)[0] == "3 open, 2 replying"
        assert listed(it)[1].endswith("waiting")
        assert "waiting" not in listed(it)[2]
        reply.say("word", tokens=10)
        await it.until(lambda: listed(it)[3].endswith("writing"))
        now, clock = it.app.chats.active.run.first, it.app.chats.services.clock
        assert now is not None and clock() >= now
        it.app.chats.active.run.began, it.app.chats.active.run.first = now - 3.5, now - 3.0
        it.main.show_snapshot(snapshot(running=(1,)))
        await it.until(lambda: "tok/s" in listed(it)[3])
        await it.until(lambda: "tok/s" in it.screen_text())
        failing.end(Finish.FAILED, "no")
        await it.until(lambda: listed(it)[1].endswith("failed"))
        assert state_of(it.app.chats.active)[0].endswith("tok/s")


@run
async def test_forks_of_a_long_title_can_be_told_apart(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        title = "a long story about a fox and a lighthouse"
        await open_chats(it, title, f"{title} (fork)", f"{title} (fork 112)")
        await it.pilot.press("alt+g")
        await it.until(lambda: it.app.context.part(ChatOverview).has_focus)
        assert listed(it)[2].endswith("about a fox an…")
        assert [line.rpartition("…")[2] for line in listed(it)[3:]] == ["(fork)", "(fork 112)"]
        await it.pilot.press("escape", "ctrl+o")
        await it.until(lambda: "fox and …(fork 112)  0 messages" in it.screen_text())


@run
async def test_a_key_or_a_click_on_its_line_opens_a_chat(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        it.app.chats.active.rename("first")
        await open_chats(it, "second", "third")
        await it.pilot.press("alt+g", "up", "up", "enter")
        await it.until(lambda: it.app.chats.active.chat.title == "first")
        assert it.main.prompt.has_focus
        overview = it.app.context.part(ChatOverview)
        assert overview.display, "no key is needed to see it"
        await it.pilot.click(overview, offset=(9, 3))
        await it.until(lambda: it.app.chats.active.chat.title == "third")
        await it.pilot.click(overview, offset=(9, 12))
        assert it.app.chats.active.chat.title == "third"
        await it.pilot.press("alt+g")
        assert not overview.display


@run
async def test_pinned_chats_are_first_and_stay_pinned(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        it.app.chats.active.rename("first")
        await open_chats(it, "second", "third")
        await it.pilot.press("alt+i")
        assert titles(it) == ["third", "first", "second"]
        assert "1◆ C  third" in it.screen_text()
        await open_chats(it, "fourth")
        assert titles(it) == ["third", "first", "second", "fourth"]
        await it.pilot.press("alt+g", "up", "p")
        assert titles(it) == ["third", "second", "first", "fourth"]
        assert [line.split()[0] for line in listed(it)[1:]] == ["1◆", "▸", "3", "4"]
        await it.pilot.press("escape", "alt+1")
        await it.until(lambda: it.app.chats.active.chat.title == "third")
    async with bench((120, 40)) as it:
        assert titles(it) == ["third", "second", "first", "fourth"]
        await it.pilot.press("alt+i")
        assert titles(it) == ["second", "third", "first", "fourth"]
        await it.pilot.press("alt+1", "alt+w")
        await it.until(lambda: titles(it) == ["third", "first", "fourth"])
        await it.pilot.press("alt+z")
        await it.until(lambda: titles(it) == ["second", "third", "first", "fourth"])
        assert "1◆ B  second" in it.screen_text()
        await it.pilot.press("alt+w")
        await it.until(lambda: titles(it) == ["third", "first", "fourth"])
    async with bench((120, 40)) as it:
        assert titles(it) == ["third", "first", "fourth"]
        await it.pilot.press("alt+z")
        await it.until(lambda: titles(it) == ["second", "third", "first", "fourth"])
        it.app.chats.erase(it.app.chats.active.chat.id)
        it.app.chats.remember(it.app.paths.remembered)
        assert Remembered.read(it.app.paths.remembered).pinned == ()


@run
async def test_a_chat_that_is_pinned_stays_selected(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        await open_chats(it, "second", "third")
        await it.pilot.press("alt+i", "alt+g")
        await it.until(lambda: listed(it)[1].startswith("▸ 1◆"))


@run
async def test_a_long_list_scrolls_to_the_selected_line(bench: Callable[..., Any]) -> None:
    async with bench((80, 16), ascii=True) as it:
        await open_chats(it, *(f"chat {number}" for number in range(20)))
        await it.pilot.press("alt+g")
        await it.until(lambda: any("chat 19" in line for line in listed(it)))
        assert listed(it)[0] == "21 open, 0 replying"
        await it.pilot.press(*["up"] * 30)
        assert listed(it)[1].startswith(">") and "chat 19" not in "".join(listed(it))
        assert all(line.isascii() for line in listed(it))
        next(iter(it.app.chats)).rename("a very long title " * 9)
        await it.until(lambda: any("a very long" in line for line in listed(it)))
        assert it.screen_text().isascii()


@run
async def test_the_wheel_and_the_paging_keys_scroll_a_long_list(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await open_chats(it, *(f"chat {number}" for number in range(30)))
        await it.pilot.press("alt+g")
        await it.until(lambda: any("chat 29" in line for line in listed(it)))
        overview = it.app.context.part(ChatOverview)
        for _ in range(20):
            overview.post_message(MouseScrollUp(overview, 5, 5, 0, -1, 0, False, False, False))
        await it.until(lambda: listed(it)[1].strip().startswith("1 "))
        assert sum("▸" in line for line in listed(it)) == 1
        overview.post_message(MouseScrollDown(overview, 5, 5, 0, 1, 0, False, False, False))
        await it.until(lambda: "4" in listed(it)[1].split())
        await it.pilot.press("end")
        await it.until(lambda: "▸31" in listed(it)[-1])
        await it.pilot.press("pageup")
        await it.until(lambda: "▸31" not in listed(it)[-1])
        await it.pilot.press("home")
        await it.until(lambda: "▸ 1" in listed(it)[1])


@run
async def test_a_list_fills_its_room_again_when_the_terminal_grows(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await open_chats(it, *(f"chat {number}" for number in range(9)))
        await it.pilot.press("alt+g")
        await it.until(lambda: len(listed(it)) == 1 + 10)
        await it.pilot.resize_terminal(80, 10)
        await it.until(lambda: len(listed(it)) < 1 + 10)
        await it.pilot.resize_terminal(80, 24)
        await it.until(lambda: len(listed(it)) == 1 + 10)


def test_a_damaged_list_of_pins_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "remembered.json"
    Remembered().left([1, 2], 1, [2]).write(file)
    assert Remembered.read(file).pinned == (2,)
    file.write_text('{"chats": [1], "pinned": "x"}')
    assert Remembered.read(file) == Remembered(chats=(1,))


@run
async def test_an_unread_reply_is_still_unread_after_a_restart(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        reply = await it.say("hello")
        await it.pilot.press("ctrl+n")
        await it.answered(reply)
        assert [state_of(each)[0] for each in it.app.chats] == ["unread", ""]
        assert len(Remembered.read(it.app.paths.remembered).unread) == 1, "a kill would not lose it"
    async with bench() as it:
        assert [state_of(each)[0] for each in it.app.chats] == ["unread", ""]
        await it.pilot.press("alt+1", "alt+2", "ctrl+q")
        await it.until(lambda: not it.app.is_running)
    async with bench() as it:
        assert [state_of(each)[0] for each in it.app.chats] == ["", ""]


@run
async def test_with_one_chat_the_bottom_line_has_no_keys_to_choose_another(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        await it.pilot.press("alt+g")
        await it.until(lambda: "p pin" in it.screen_text())
        assert "choose" not in it.screen_text() and "Enter go" not in it.screen_text()
        await it.pilot.press("ctrl+n", "alt+g")
        await it.until(lambda: "Up Down choose  Enter go  p pin" in it.screen_text())


@run
async def test_chats_that_come_above_the_selected_one_do_not_take_its_place(
    bench: Callable[..., Any],
) -> None:
    async with bench((120, 40)) as it:
        await it.answered(await it.say("hello"), "good day")
        await it.pilot.press("ctrl+n", "ctrl+n", "alt+g", "up")
        overview, chats = it.main.query_one(ChatOverview), it.app.chats
        second = list(chats)[1]
        assert overview.chosen is second
        first = next(iter(chats))
        chats.spread(first, [replace(first.chat.messages[-1], text="another")])
        assert list(chats).index(second) == 2
        assert overview.chosen is second
        await it.pilot.press("p")
        assert chats.is_pinned(second)
        await it.pilot.press("enter")
        await it.until(lambda: chats.active is second)


@run
async def test_it_opens_at_the_chat_on_the_screen(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        await it.pilot.press("ctrl+n", "ctrl+n", "alt+g")
        overview = it.main.query_one(ChatOverview)
        await it.until(lambda: overview.chosen is it.app.chats.active)
        await it.pilot.press("up", "up")
        assert overview.at == 0
        await it.pilot.press("escape", "alt+g")
        await it.until(lambda: overview.chosen is it.app.chats.active)


@run
async def test_keys_for_this_chat_are_for_the_selected_one(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        it.app.chats.active.rename("first")
        await open_chats(it, "second", "third", "fourth")
        await it.pilot.press(*"half", "alt+g", "up", "up", "alt+w")
        await it.until(lambda: titles(it) == ["first", "third", "fourth"])
        overview = it.main.query_one(ChatOverview)
        assert overview.has_focus and overview.chosen.chat.title == "third", "the next one"
        assert (it.app.chats.active.chat.title, it.main.prompt.text) == ("fourth", "half")
        await it.pilot.press("alt+i")
        assert titles(it) == ["third", "first", "fourth"]
        await it.pilot.press("down", "alt+d", "down", "enter")
        await it.until(lambda: titles(it) == ["third", "fourth"])
        await it.until(lambda: overview.has_focus)
        await it.pilot.press("down", "alt+w")
        await it.until(lambda: titles(it) == ["third"])
        assert it.app.chats.active.chat.title == overview.chosen.chat.title == "third"
        await it.pilot.press("escape", "alt+w")
        await it.until(lambda: titles(it) == [""])
        assert it.main.prompt.has_focus


@run
async def test_the_selected_chat_is_forked_and_instructed(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        await it.answered(await it.say("hello"))
        await open_chats(it, "second", "third")
        await it.pilot.press("alt+g", "up", "up", "alt+s")
        await it.until(lambda: it.app.screen is not it.main)
        await it.pilot.press(*"short", "ctrl+s")
        await it.until(lambda: [each.chat.system for each in it.app.chats] == ["short", "", ""])
        await it.pilot.press("alt+k")
        await it.until(lambda: len(titles(it)) == 4)
        assert [each.chat.system for each in it.app.chats] == ["short", "short", "", ""]
        assert it.app.chats.index == 1


@run
async def test_a_chat_that_is_renamed_there_has_nothing_unread(bench: Callable[..., Any]) -> None:
    async with bench((120, 40)) as it:
        await it.answered(await it.say("hello"))
        await it.pilot.press("ctrl+n", "alt+g", "up", "alt+t", *"name", "enter")
        await it.pilot.press("alt+s", *"Be", "ctrl+s")
        first, _ = it.app.chats
        await it.until(lambda: (first.chat.title, first.chat.system) == ("name", "Be"))
        assert not any(each.unread for each in it.app.chats)
        assert Remembered.read(it.app.paths.remembered).unread == ()
