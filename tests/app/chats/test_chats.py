"""Several chats: opening, switching, closing, side by side, each with its own state."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from textual.widgets import TextArea

from minichat.clients.fake import FakeBackend
from minichat.features.chats import chats
from tests.app.conftest import run, snapshot

KEPT = "What you typed is not used. Alt+S shows it again"


def titles(it: Any) -> list[str]:
    return [each.chat.title for each in it.app.chats]


async def two_chats(it: Any) -> None:
    await it.answered(await it.say("first"))
    await it.pilot.press("ctrl+n")
    await it.answered(await it.say("second"))


@run
async def test_new_and_switch(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await two_chats(it)
        assert titles(it) == ["first", "second"]
        it.main.prompt.put("a draft")
        for keys, title, draft in (
            ("alt+1", "first", ""),
            ("alt+2", "second", "a draft"),
            ("ctrl+pageup", "first", ""),
            ("ctrl+pagedown", "second", "a draft"),
            ("alt+h", "first", ""),
            ("alt+l", "second", "a draft"),
        ):
            await it.pilot.press(keys)
            assert (it.app.chats.active.chat.title, it.main.prompt.text) == (title, draft), keys


@run
async def test_chats_are_restored_in_order(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await two_chats(it)
        await it.pilot.press("alt+1", "alt+k")
        await it.until(lambda: titles(it) == ["first", "first (fork)", "second"])
        await it.pilot.press("alt+1", "ctrl+q")
        await it.until(lambda: it.app.return_code == 0)
    async with bench() as it:
        assert titles(it) == ["first", "first (fork)", "second"]
        assert it.app.chats.active.chat.title == "first"
        it.app.store.create_chat("of another screen")
    async with bench() as it:
        assert titles(it)[-1] == "of another screen"
        await it.pilot.press("alt+3")
    async with bench() as it:  # the previous program was killed
        assert it.app.chats.active.chat.title == "second"


@run
async def test_tabs_can_be_clicked(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await two_chats(it)
        await it.pilot.click("#tabs", offset=(4, 0))
        assert it.app.chats.active.chat.title == "first"


@run
@pytest.mark.parametrize("size", [(80, 24), (40, 12)])
async def test_with_many_tabs_the_active_title_is_shown(
    bench: Callable[..., Any], size: tuple[int, int]
) -> None:
    async with bench(size) as it:
        for number in range(13):
            it.app.store.create_chat(f"a word about {number}")
    async with bench(size) as it:
        await it.pilot.press("alt+9")
        line = it.screen_text().splitlines()[0]
        title = it.app.chats.active.chat.title
        assert title in line and "\u2026ut 8 " in line
        await it.pilot.click("#tabs", offset=(line.index(title), 0))
        assert it.app.chats.active.chat.title == title


@run
async def test_why_a_broadcast_reaches_only_one_chat_is_shown(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        await it.pilot.press("alt+a")
        await it.until(lambda: "several chats need 180 columns, this terminal has 80" in it.notices()[-1])
    async with bench((200, 60)) as it:
        await it.pilot.press("alt+a")
        await it.until(lambda: "one pane is open: ^N opens another chat" in it.notices()[-1])
        await two_chats(it)
        await it.pilot.press("f3", "alt+a")
        await it.until(lambda: "the drawer or the monitor" in it.notices()[-1])
        await it.pilot.press("f3", "alt+p", "alt+a")
        await it.until(lambda: "Alt+P shows several chats" in it.notices()[-1])
        await it.pilot.press("alt+p")
        await it.until(lambda: len(it.main.shown) == 2)
        assert "to all" not in it.screen_text(), "what it could not do before is done later"
        await it.pilot.press("alt+a")
        await it.until(lambda: "to all 2 panes" in it.screen_text())
        await it.pilot.press("alt+a")
        await it.until(lambda: "to this chat only" in it.notices()[-1])


@run
async def test_fork_copies_all_messages(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await two_chats(it)
        await it.pilot.press("alt+1", "alt+k")
        assert titles(it) == ["first", "first (fork)", "second"]
        reply = await it.say("on")
        assert [turn["content"] for turn in reply.prompt] == ["first", "fine", "on"]


@run
async def test_fork_from_a_message(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("one"))
        await it.answered(await it.say("two"))
        await chats.fork(it.app.context, it.app.chats.active.chat.messages[1])
        await it.pilot.pause()
        assert [text for _, text, _ in it.texts()] == ["one", "fine"]


@run
async def test_rename(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await two_chats(it)
        await it.pilot.press("alt+t", *"other", "enter")
        await it.until(lambda: titles(it) == ["first", "other"])
        assert "other" in it.screen_text()


@run
async def test_a_blank_name_is_refused(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("first"))
        await it.pilot.press("alt+t", "space", "enter")
        await it.until(lambda: "A chat's name cannot be blank" in it.notices())
        await it.pilot.press("backspace", *"other", "enter")
        await it.until(lambda: titles(it) == ["other"])


@run
async def test_a_chat_without_a_name_may_stay_so(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("alt+t", "enter")
        await it.until(lambda: len(it.app.screen_stack) == 1)
        assert (titles(it), it.notices()) == ([""], [])


@run
async def test_a_title_that_the_user_chose_is_kept(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("alt+t", *"mine", "enter")
        await it.until(lambda: titles(it) == ["mine"])
        await it.answered(await it.say("first"))
        assert titles(it) == ["mine"]
        it.app.chats.active.edit()
        it.app.chats.active.send("changed")
        assert titles(it) == ["mine"]


@run
async def test_a_title_from_the_first_message_changes_with_it(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("first"))
        it.app.chats.active.edit()
        it.app.chats.active.send("changed")
        assert titles(it) == ["changed"]


@run
async def test_system_prompt(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press("alt+s", *"rhyme")
        await it.until(lambda: "^S accept" in it.screen_text())
        await it.pilot.press("ctrl+s")
        await it.until(lambda: it.app.chats.active.chat.system == "rhyme")
        await it.until(lambda: str(it.main.prompt.border_title).endswith("  system prompt"))
        assert (await it.say("hello")).prompt[0] == {"role": "system", "content": "rhyme"}


@run
async def test_a_system_prompt_that_is_left_is_kept(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        first = it.app.chats.active
        first.instruct("Be brief.")
        await it.pilot.press("alt+s", *" No", "escape")
        await it.until(lambda: KEPT in it.notified.values())
        assert first.chat.system == "Be brief."
        await it.pilot.press("ctrl+n", "alt+s")
        await it.until(lambda: "System prompt (applies" in it.screen_text())
        assert it.app.screen.query_one(TextArea).text == ""
        await it.pilot.press("escape", "alt+1", "alt+s", *" rhymes.")
        await it.until(lambda: "System prompt (typed, not used yet" in it.screen_text())
        await it.pilot.press("ctrl+s")
        await it.until(lambda: first.chat.system == "Be brief. No rhymes.")
        await it.pilot.press("alt+s")
        await it.until(lambda: "System prompt (applies" in it.screen_text())


@run
async def test_undo_brings_back_the_system_prompt_in_use(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        it.app.chats.active.instruct("Be brief.")
        await it.pilot.press("alt+s", *" No", "escape", "alt+s", "ctrl+z")
        await it.until(lambda: it.app.screen.query_one(TextArea).text == "Be brief.")
        await it.pilot.press("escape", "alt+s")
        await it.until(lambda: "System prompt (applies" in it.screen_text())


@run
async def test_jump_finds_messages_in_a_closed_chat(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await two_chats(it)
        await it.pilot.press("alt+1", "alt+w", "ctrl+o", *"first")
        await it.until(lambda: "you" in it.screen_text() or "first" in it.screen_text())
        await it.pilot.press("enter")
        await it.until(lambda: it.app.chats.active.chat.title == "first")


@run
async def test_a_search_shows_the_letters_of_open_chats(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await two_chats(it)
        await it.pilot.press("ctrl+o", *"second")
        await it.until(lambda: "│  B   second" in it.screen_text() and "  A   first" not in it.screen_text())


@run
async def test_a_found_message_takes_one_line_that_shows_the_match(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        store = it.app.store
        for number in range(9):
            chat = store.create_chat(f"{number} a title of a chat that is as long as a title may be")
            store.append(chat.id, "user", f"{'word ' * 30}needle {number} {'word ' * 30}")
        await it.pilot.press("ctrl+o", *"needle")
        await it.until(lambda: "needle 8" in it.screen_text())
        shown = [line for line in it.screen_text().splitlines() if "a title of" in line]
        assert len(shown) == 9 and all("needle" in line for line in shown)
        assert "Type more" not in it.screen_text()
        for number in range(50):
            store.append(chat.id, "user", f"needle {number}")
        await it.pilot.press("space")
        await it.until(lambda: "These are the newest 50. Type more to find others" in it.screen_text())


@run
async def test_the_list_shows_its_count_and_when_nothing_was_found(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        store = it.app.store
        store.append(store.create_chat("lone").id, "user", "hello")
        await it.pilot.press("ctrl+o")
        await it.until(lambda: "lone  1 message " in it.screen_text())
        await it.pilot.press(*"zzz")
        await it.until(lambda: "No title or message matches" in it.screen_text())
        await it.pilot.press("backspace", "backspace", "backspace")
        await it.until(lambda: "lone  1 message " in it.screen_text())
        assert "nowhere" not in it.screen_text()


@run
async def test_all_chats_stream_side_by_side(bench: Callable[..., Any]) -> None:
    async with bench((200, 50)) as it:
        replies = []
        for number in range(3):
            replies.append(await it.say(f"chat {number}"))
            if number < 2:
                await it.pilot.press("ctrl+n")
        for reply in replies:
            reply.say(f"text{reply.id}")
        await it.until(lambda: all(f"text{place}" in it.screen_text() for place in (1, 2)))
        assert len(it.app.chats.streaming) == 3
        await it.command("reply.stop_all")
        await it.until(lambda: not it.app.chats.streaming)
        assert [each.chat.messages[-1].text for each in it.app.chats] == ["text0", "text1", "text2"]


@run
async def test_broadcast_sends_to_all_visible_chats(bench: Callable[..., Any]) -> None:
    async with bench((200, 50)) as it:
        await it.pilot.press("ctrl+n", "alt+a")
        assert "to all 2 panes: A B" in it.screen_text()
        it.main.prompt.put("compare")
        await it.pilot.press("enter")
        await it.until(lambda: len(it.replies) == 2)
        assert [each.chat.messages[0].text for each in it.app.chats] == ["compare", "compare"]
        await it.pilot.press("alt+a")
        assert "to all" not in it.screen_text()


@run
async def test_each_chat_has_its_own_sampling_params(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        first = await it.say("hello")
        await it.pilot.press("ctrl+n")
        it.app.chats.active.tune(it.app.chats.active.chat.params.changed(temperature=0.0))
        second = await it.say("hello")
        assert (first.params.temperature, second.params.temperature) == (0.7, 0.0)


def figures(it: Any) -> str:
    """The figures of the running reply in the header of the active pane."""
    it.main.pane.show_figures()
    shown: str = it.main.pane.head.figures
    return shown


@run
async def test_a_rate_is_shown_once_it_can_be_computed(bench: Callable[..., Any]) -> None:
    async with bench((100, 30)) as it:
        reply = await it.say("hello")
        reply.say("two tokens")
        await it.until(lambda: it.app.chats.active.run.first is not None)
        run = it.app.chats.active.run
        run.tokens, run.first = 3, it.app.chats.active.services.clock()
        assert figures(it) == "3 tok"
        run.first -= 60
        run.began = run.first
        assert figures(it) == "0.033 tok/s  3 tok"


@run
async def test_the_blocks_of_a_reply_are_shown_while_it_runs_and_after_it_ended(
    bench: Callable[..., Any],
) -> None:
    both = snapshot(1, running=(0, 1))
    both = replace(both, requests=(both.requests[0], both.requests[1]._replace(group=0)))
    async with bench((240, 40), backend=FakeBackend([snapshot(), both])) as it:
        await it.pilot.press("ctrl+n")  # with two panes, each has a header with its figures
        reply = await it.say("hello")
        await it.until(lambda: it.app.chats.active.run.blocks == 4)  # including those of its second sample
        reply.say("some words")
        await it.until(lambda: figures(it) == "1 tok  4 blk")
        it.app.chats.active.rename("a title for which there is room, but none for blocks beside it")
        await it.until(lambda: figures(it) == "1 tok")
        reply.end(blocks=1_234)
        await it.until(lambda: "1 tok  1,234 blk" in it.screen_text())
    async with bench((100, 30)) as it:  # stored with the reply
        assert "1 tok  1,234 blk" in it.screen_text()
        await it.answered(await it.say("again"))  # an engine that does not report it
        assert it.screen_text().count("blk") == 1


@run
async def test_a_long_title_leaves_room_before_the_figures(bench: Callable[..., Any]) -> None:
    async with bench((200, 50)) as it:
        await it.pilot.press("ctrl+n")
        it.app.chats.active.rename("a title that is much too long for the head of a pane that is so narrow")
        for pane in it.main.panes:
            pane.head.figures = "35 tok/s  82 tok"
        await it.until(lambda: "…  35 tok/s" in it.screen_text())


@run
async def test_many_chats_need_few_widgets(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        for number in range(9):
            await it.answered(await it.say(f"question {number}"), f"answer {number}")
            await it.pilot.press("ctrl+n")
        await it.pilot.press("f3", "f4")
        assert len(it.main.query("*")) < 100
        for number in (1, 9, 4, 1):
            await it.pilot.press(f"alt+{number}")
            await it.until(lambda text=f"answer {number - 1}": text in it.screen_text())
        assert len(it.main.query("*")) < 100
        order = [pane.conversation.chat.title for pane in it.main.query("ChatPane")]
        assert order == sorted(order, key=titles(it).index), "panes are in the order of the tabs"


@run
async def test_replies_to_a_chat_without_a_pane_are_stored(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        reply = await it.say("tell me")
        for _ in range(8):
            await it.pilot.press("ctrl+n")
        first = next(iter(it.app.chats))
        assert first.view is None
        reply.say("said in the background, ")
        await it.until(lambda: first.run.parts.text)
        await it.pilot.press("alt+1")
        await it.until(lambda: "the background," in it.screen_text())
        reply.say("and after")
        await it.until(lambda: "the background, and after" in it.screen_text())
        reply.end()
        await it.until(lambda: it.texts()[-1] == ("assistant", "said in the background, and after", "done"))
