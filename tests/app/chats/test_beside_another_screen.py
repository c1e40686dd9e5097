"""Changes that another screen made to the same chats appear when the user returns to this screen."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.api.snapshot import TierView
from minichat.chats.model import Message, ReplyStats
from minichat.chats.store import Store
from minichat.clients.fake import FakeBackend
from minichat.session.conversation import Conversation
from minichat.session.open_chats import OpenChats
from minichat.shell.paths import locate
from minichat.shell.remembered import Remembered
from tests.app.conftest import Clock, run, snapshot


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return Store(locate({"HOME": str(tmp_path)}).chats)


def writes(other: Store, chat: int) -> None:
    other.append(chat, "user", "from elsewhere")
    other.append(chat, "assistant", "heard there", stats=ReplyStats(2, 1.0, 0.1, 3, "greedy"))


@contextmanager
def living(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Write as another living process."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", os.getppid)
        yield


@contextmanager
def a_moment_before(monkeypatch: pytest.MonkeyPatch, other: Store, chat: int) -> Iterator[None]:
    """Another screen sends a message after this one has looked for changes, and before it writes its own."""
    looked = OpenChats.replying_elsewhere

    def look(chats: OpenChats, conversation: Conversation) -> bool:
        before = looked(chats, conversation)
        with living(monkeypatch):
            said = (Message(0, "user", "from elsewhere"), Message(0, "assistant", "", state="streaming"))
            other.add_turn(chat, other.history(chat)[-1].id, said)
        patch.undo()
        return before

    with monkeypatch.context() as patch:
        patch.setattr(OpenChats, "replying_elsewhere", look)
        yield


def comes_back(it: Any) -> None:
    it.app.start.clock.now += 60


@run
async def test_messages_of_the_other_screen_are_read_here(bench: Callable[..., Any], other: Store) -> None:
    async with bench(clock=Clock()) as it:
        await it.answered(await it.say("hello"), "good day")
        writes(other, it.app.chats.active.chat.id)
        comes_back(it)
        await it.pilot.press("a")  # for terminals that do not report focus
        await it.until(lambda: "heard there" in it.screen_text())
        reply = await it.say("and here?")
        texts = [turn["content"] for turn in reply.prompt]
        assert texts == ["hello", "good day", "from elsewhere", "heard there", "and here?"]


@run
async def test_a_chat_opened_on_the_other_screen_gets_a_tab_with_its_first_message(
    bench: Callable[..., Any], other: Store
) -> None:
    async with bench(clock=Clock()) as it:
        await it.pilot.press("ctrl+n", "alt+w")
        active = it.app.chats.active
        opened = other.create_chat("elsewhere").id
        comes_back(it)
        await it.pilot.press("a")
        assert list(it.app.chats) == [active], "an empty chat has nothing to show"
        writes(other, opened)
        comes_back(it)
        await it.pilot.press("b")
        await it.until(lambda: "elsewhere" in it.screen_text())
        assert it.app.chats.active is active and it.main.prompt.text == "ab"
        await it.pilot.press("alt+2")
        await it.until(lambda: "heard there" in it.screen_text())
        assert [each.chat.id for each in it.app.chats] == [active.chat.id, opened]
        other.keep_draft(opened, "typed elsewhere")
        await it.pilot.press("alt+1", "ctrl+q")
        await it.until(lambda: not it.app.is_running)
    assert other.chat(opened).draft == "typed elsewhere"


@run
async def test_regenerating_keeps_messages_of_the_other_screen(
    bench: Callable[..., Any], other: Store
) -> None:
    """Regenerating a reply removes the messages after it."""
    async with bench(clock=Clock()) as it:
        await it.answered(await it.say("hello"), "good day")
        chat = it.app.chats.active.chat.id
        writes(other, chat)
        it.app.on_app_focus()
        await it.pilot.press("alt+r")
        await it.until(lambda: len(it.replies) == 2)
        await it.answered(it.replies[-1], "drawn again")
        texts = [each.text for each in other.chat(chat).messages]
        assert texts == ["hello", "good day", "from elsewhere", "drawn again"]


@run
async def test_title_system_prompt_params_and_adapter_are_taken_over(
    bench: Callable[..., Any], other: Store
) -> None:
    async with bench(clock=Clock()) as it:
        await it.answered(await it.say("hello"))
        chat = it.app.chats.active.chat
        other.change_chat(chat.id, title="renamed", system="rhyme", adapter="sql")
        other.tune(chat.id, chat.params, chat.params.changed(temperature=0))
        it.app.on_app_focus()
        await it.until(lambda: "renamed" in it.screen_text())
        reply = await it.say("more")
        assert reply.prompt[0] == {"role": "system", "content": "rhyme"}
        assert reply.params.temperature == 0
        assert it.app.chats.active.run.adapter == "sql"


@run
async def test_pins_of_the_other_screen_stay(bench: Callable[..., Any], other: Store) -> None:
    async with bench() as it:
        file = it.app.paths.remembered
        elsewhere = [other.create_chat().id for _ in range(2)]
        await it.pilot.press("alt+i")
        here = it.app.chats.active.chat.id
        assert Remembered.read(file).pinned == (here,)
        Remembered.read(file).left(elsewhere, elsewhere[0], (here, *elsewhere)).write(file)
        await it.pilot.press("ctrl+n")
        assert Remembered.read(file).pinned == (here, *elsewhere)
        Remembered.read(file).left(elsewhere, elsewhere[0], elsewhere).write(file)
        await it.pilot.press("ctrl+n", "alt+i")
        assert Remembered.read(file).pinned == (*elsewhere, it.app.chats.active.chat.id)


@run
async def test_parameters_that_another_screen_has_just_changed_are_kept(
    bench: Callable[..., Any], other: Store
) -> None:
    async with bench(clock=Clock()) as it:
        active = it.app.chats.active
        reply = await it.say("hello")
        was = active.chat.params
        other.tune(active.chat.id, was, was.changed(top_k=7))
        active.tune(was.changed(temperature=0.25))
        both = was.changed(top_k=7, temperature=0.25)
        assert active.chat.params == other.chat(active.chat.id).params == both
        await it.until(lambda: it.backend.updates)
        assert it.backend.updates == [(reply.id, {"top_k": 7, "temperature": 0.25})]


@run
async def test_a_reply_that_runs_here_is_not_interrupted(bench: Callable[..., Any], other: Store) -> None:
    async with bench(clock=Clock()) as it:
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
async def test_a_chat_deleted_there_is_kept_here(bench: Callable[..., Any], other: Store) -> None:
    async with bench(clock=Clock()) as it:
        await it.answered(await it.say("hello"), "good day")
        other.delete_chat(it.app.chats.active.chat.id)
        it.app.on_app_focus()
        assert it.texts()[-1] == ("assistant", "good day", "done")
        assert not it.notices()


@run
async def test_a_message_to_several_chats_reaches_none_if_one_was_deleted(
    bench: Callable[..., Any], other: Store
) -> None:
    async with bench((200, 50), clock=Clock()) as it:
        await it.pilot.press("ctrl+n", "alt+a")
        first, second = (each.chat.id for each in it.app.chats)
        other.delete_chat(second)
        it.main.prompt.put("to all")
        await it.pilot.press("enter")
        await it.until(lambda: "Chat B was deleted, possibly in another window" in it.notices())
        assert (it.main.prompt.text, other.history(first), len(it.replies)) == ("to all", [], 0)


@run
async def test_a_message_follows_those_sent_elsewhere_a_moment_ago(
    bench: Callable[..., Any], other: Store
) -> None:
    async with bench(clock=Clock()) as it:
        await it.pilot.press("a")
        writes(other, it.app.chats.active.chat.id)
        reply = await it.say("and here?")
        assert [turn["content"] for turn in reply.prompt] == ["from elsewhere", "heard there", "and here?"]


@run
async def test_nothing_is_sent_or_regenerated_while_another_screen_receives_a_reply(
    bench: Callable[..., Any], other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(clock=Clock()) as it:
        await it.answered(await it.say("hello"), "good day")
        chat = it.app.chats.active.chat.id
        other.append(chat, "user", "from elsewhere")
        with living(monkeypatch):
            other.append(chat, "assistant", "half", state="streaming")
        it.main.prompt.put("and here?")
        await it.pilot.press("enter", "alt+r")
        notice = "A is replying on another screen. Wait for the end of the reply"
        await it.until(lambda: notice in it.notices())
        assert (it.main.prompt.text, len(it.replies)) == ("and here?", 1)
        assert it.texts()[-1] == ("assistant", "half", "streaming")


@run
async def test_a_reply_of_a_killed_screen_hinders_nothing(
    bench: Callable[..., Any], other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(clock=Clock()) as it:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 2**22 + 1)  # larger than any process id
            writes(other, it.app.chats.active.chat.id)
            other.append(it.app.chats.active.chat.id, "assistant", "half", state="streaming")
        reply = await it.say("and here?")
        assert reply.prompt[-1]["content"] == "and here?"
        assert ("assistant", "half", "stopped") in it.texts()


@run
async def test_a_reply_that_another_screen_receives_is_followed_without_a_key(
    bench: Callable[..., Any], other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minichat.app._FOLLOW_EVERY", 0.15)
    async with bench(clock=Clock()) as it:
        await it.answered(await it.say("hello"), "\n".join(map(str, range(60))))
        chat = it.app.chats.active.chat.id
        with living(monkeypatch):
            reply = other.append(chat, "assistant", "half", state="streaming")
        it.app.on_app_focus()
        await it.until(lambda: "half" in it.screen_text())
        await it.pilot.press("ctrl+up", "ctrl+up")
        top = it.main.transcript.scroll_offset.y
        with living(monkeypatch):
            other.update(replace(reply, text="half of it"))
        await it.until(lambda: it.texts()[-1] == ("assistant", "half of it", "streaming"))
        other.update(replace(reply, text="all of it", state="done"))
        await it.until(lambda: it.texts()[-1] == ("assistant", "all of it", "done"))
        assert it.main.transcript.scroll_offset.y == top, "the view does not move"
        await it.until(lambda: it.app._following is None)


@run
async def test_such_a_reply_is_followed_from_the_moment_its_tab_is_chosen(
    bench: Callable[..., Any], other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minichat.app._FOLLOW_EVERY", 0.15)
    async with bench(clock=Clock()) as it:
        await it.answered(await it.say("hello"), "good day")
        chat = it.app.chats.active.chat.id
        await it.pilot.press("ctrl+n")
        await it.answered(await it.say("second"), "yes")
        with living(monkeypatch):
            reply = other.append(chat, "assistant", "half", state="streaming")
        await it.pilot.press("ctrl+pageup")
        await it.until(lambda: it.texts()[-1] == ("assistant", "half", "streaming"))
        other.update(replace(reply, text="all of it", state="done"))
        await it.until(lambda: it.texts()[-1] == ("assistant", "all of it", "done"))


@run
@pytest.mark.parametrize("how", ["sends", "closes"])
async def test_what_the_other_screen_types_is_still_there_after_this_one(
    bench: Callable[..., Any], other: Store, how: str
) -> None:
    async with bench() as it:
        chat = it.app.chats.active.chat.id
        await it.pilot.press(*"mine")
        await it.until(lambda: other.chat(chat).draft == "mine")
        other.keep_draft(chat, "typed elsewhere")
        if how == "sends":
            await it.pilot.press("enter")
            await it.until(lambda: it.replies)
            await it.answered(it.replies[-1])
        else:
            await it.pilot.press("alt+w")
            await it.until(lambda: it.app.chats.active.chat.id != chat)
        assert other.chat(chat).draft == "typed elsewhere"


@run
async def test_quitting_keeps_what_was_typed_on_the_other_screen(
    bench: Callable[..., Any], other: Store
) -> None:
    async with bench() as it:
        first = it.app.chats.active.chat.id
        await it.pilot.press("ctrl+n", *"here")
        second = it.app.chats.active.chat.id
        other.keep_draft(first, "typed elsewhere")
        await it.pilot.press("ctrl+q")
        await it.until(lambda: not it.app.is_running)
    assert [other.chat(each).draft for each in (first, second)] == ["typed elsewhere", "here"]


@run
@pytest.mark.parametrize("key", ["enter", "alt+r"])
async def test_of_two_messages_at_once_the_second_waits(
    bench: Callable[..., Any], other: Store, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """It follows the reply that it waits for."""
    monkeypatch.setattr("minichat.app._FOLLOW_EVERY", 0.15)
    async with bench(clock=Clock()) as it:
        await it.answered(await it.say("hello"), "good day")
        it.main.prompt.put("and here?")
        with a_moment_before(monkeypatch, other, it.app.chats.active.chat.id):
            await it.pilot.press(key)
            notice = "A is replying on another screen. Wait for the end of the reply"
            await it.until(lambda: it.notices() == [notice])
        assert (it.main.prompt.text, len(it.replies)) == ("and here?", 1)
        told = [("user", "from elsewhere", "done"), ("assistant", "", "streaming")]
        assert it.texts() == [("user", "hello", "done"), ("assistant", "good day", "done"), *told]
        reply = it.app.chats.active.chat.messages[-1]
        other.update(replace(reply, text="heard there", state="done"))
        await it.until(lambda: it.texts()[-1] == ("assistant", "heard there", "done"))


@run
async def test_an_edit_does_not_remove_unseen_messages(bench: Callable[..., Any], other: Store) -> None:
    """The user is asked to read them; a message that is gone is not edited."""
    async with bench(clock=Clock()) as it:
        await it.answered(await it.say("hello"), "good day")
        chat = it.app.chats.active.chat
        await it.pilot.press("alt+e")
        writes(other, chat.id)
        await it.pilot.press("!", "enter")
        notice = "Another screen has just changed the chat; read what is new and send again"
        await it.until(lambda: notice in it.notices())
        assert (it.main.prompt.text, it.texts()[-1][1]) == ("hello!", "heard there")
        ids = [each.id for each in other.history(chat.id)]
        said = Message(0, "user", "instead")
        other.add_turn(chat.id, ids[-1], [said], instead_of=ids[0])
        await it.pilot.press("enter")
        await it.until(lambda: "message is no longer in the chat" in it.notices()[-1])
        assert (it.main.prompt.text, it.texts()) == ("hello!", [("user", "instead", "done")])
        await it.pilot.press("enter")
        await it.until(lambda: len(it.replies) == 2)
        assert [turn["content"] for turn in it.replies[-1].prompt] == ["instead", "hello!"]


@run
async def test_the_monitor_counts_the_blocks_on_disk_again_at_a_focus(bench: Callable[..., Any]) -> None:
    """The first snapshot has the engine look at the disk, and the second one shows what it found.

    Where that is nothing, the graphs keep the last reply.
    """
    before, same, after = (
        snapshot(step, tiers=(TierView("disk", used, 9),)) for step, used in ((1, 7), (2, 7), (3, 0))
    )
    backend = FakeBackend([*[before] * 100, *[same] * 100, after])
    async with bench((120, 40), backend=backend) as it:
        await it.until(lambda: "disk 7/9" in it.screen_text() and it.app.poller.resting)
        backend.snapshots_taken = 100
        it.app.on_app_focus()
        await it.until(lambda: backend.snapshots_taken == 102 and it.app.poller.resting)
        assert it.main.engine.latest is before
        backend.snapshots_taken = 199
        it.app.on_app_focus()
        await it.until(lambda: "disk 0/9" in it.screen_text())


@run
async def test_a_reply_is_read_once_one_screen_has_shown_it(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        file = it.app.paths.remembered
        reply = await it.say("hello")
        await it.pilot.press("ctrl+n")
        await it.answered(reply)
        chat, here = next(iter(it.app.chats)).chat.id, it.app.chats.active.chat.id
        assert Remembered.read(file).unread == (chat,)
        Remembered.read(file).left([], 0, [], [here, 99]).write(file)  # shown there, where two others came
        await it.pilot.press("alt+i")
        await it.until(lambda: Remembered.read(file).unread == (99,))
