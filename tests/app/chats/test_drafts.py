"""A draft is saved within a second, and neither it nor an edit is lost on the way."""

from collections.abc import Callable
from typing import Any

import pytest

from minichat.clients.fake import FakeBackend
from tests.app.conftest import run, snapshot


@run
async def test_a_draft_is_saved_while_it_is_typed(bench: Callable[..., Any]) -> None:
    """A killed program cannot save anything, so only what is already stored survives."""
    async with bench() as it:
        stored = lambda: {chat.id: chat.draft for chat in it.app.store.open_chats()}  # noqa: E731
        first = it.app.chats.active.chat
        await it.pilot.press(*"half")
        await it.until(lambda: stored()[first.id] == "half")
        await it.pilot.press(*" a", "ctrl+n", *"second")
        second = it.app.chats.active.chat
        await it.until(lambda: stored() == {first.id: "half a", second.id: "second"})
        await it.answered(await it.say("second thought"))
        assert stored() == {first.id: "half a", second.id: ""}, "a sent message is no draft"


@run
async def test_a_draft_typed_just_before_its_chat_is_closed_is_saved(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press(*"half", "alt+w")
        await it.until(lambda: it.main.prompt.text == "")
        await it.pilot.press("alt+z")
        await it.until(lambda: it.main.prompt.text == "half")


@run
async def test_a_save_that_is_late_is_still_within_a_second(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a model loads, a timer may be late by half a second."""
    async with bench() as it:
        it.main.keep_drafts()  # the screen begins with an empty prompt, which counts as a change
        delays: list[float] = []
        start = it.app.set_timer

        def record(delay: float, callback: Any = None, **keywords: Any) -> Any:
            if callback == it.main.drafts.keep:
                delays.append(delay)
            return start(delay, callback, **keywords)

        monkeypatch.setattr(it.app, "set_timer", record)
        await it.pilot.press("h")
        await it.until(lambda: it.app.store.open_chats()[0].draft == "h")
        assert len(delays) == 1
        assert delays[0] <= 0.3


@run
async def test_an_edited_message_is_no_draft(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"))
        chat = it.app.chats.active.chat
        await it.pilot.press(*"later")
        await it.until(lambda: it.app.store.chat(chat.id).draft == "later")
        await it.pilot.press("alt+e", *" again")
        await it.until(lambda: it.main.prompt.text == "hello again")
        it.main.drafts.keep()
        assert it.app.store.chat(chat.id).draft == "later"


@run
async def test_an_edit_and_the_draft_are_still_there_after_a_look_at_another_chat(
    bench: Callable[..., Any],
) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"))
        await it.pilot.press(*"later", "alt+e", *" again", "ctrl+n")
        assert it.main.prompt.text == ""
        for key in ("alt+1", "alt+2", "alt+1"):
            await it.pilot.press(key)
        assert it.main.prompt.text == "hello again"
        await it.pilot.press("escape")
        assert it.main.prompt.text == "later"


@run
async def test_a_second_alt_e_changes_neither_the_edit_nor_the_draft(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"))
        await it.pilot.press(*"later", "alt+e", *" again", "alt+e")
        assert it.main.prompt.text == "hello again"
        await it.pilot.press("escape")
        assert it.main.prompt.text == "later"


@run
async def test_the_draft_returns_once_the_edit_is_sent(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"))
        await it.pilot.press(*"later", "alt+e", *" again", "enter")
        await it.until(lambda: it.main.prompt.text == "later")
        assert it.replies[-1].prompt == [{"role": "user", "content": "hello again"}]


@run
async def test_quitting_keeps_an_edit_beside_the_draft(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"))
        await it.pilot.press(*"later", "alt+e", *" again", "ctrl+n", *"second", "ctrl+q")
        await it.until(lambda: not it.app.is_running)
    async with bench() as it:
        assert [each.chat.draft for each in it.app.chats] == ["later", "second"]
        await it.pilot.press("alt+1")
        assert it.main.prompt.text == "hello again"
        await it.pilot.press("enter")
        await it.until(lambda: it.main.prompt.text == "later")
        assert it.replies[-1].prompt == [{"role": "user", "content": "hello again"}]


@run
async def test_an_edit_is_saved_while_it_is_typed(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"))
        stored = lambda: it.app.store.open_chats()[0]  # noqa: E731
        await it.pilot.press("alt+e")
        it.main.drafts.keep()
        assert stored().edit is None, "nothing was typed"
        await it.pilot.press(*" again")
        await it.until(lambda: stored().edit is not None and stored().edit.text == "hello again")
        assert stored().draft == ""
        await it.pilot.press("enter")
        await it.until(lambda: len(it.replies) == 2)
        assert stored().edit is None


@run
async def test_a_draft_that_is_erased_after_reopening_is_gone(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.pilot.press(*"half", "alt+w")
        await it.until(lambda: it.main.prompt.text == "")
        await it.pilot.press("alt+z")
        await it.until(lambda: it.main.prompt.text == "half")
        it.main.prompt.put("")
        await it.pilot.press("ctrl+q")
        await it.until(lambda: not it.app.is_running)
    async with bench() as it:
        assert [each.chat.draft for each in it.app.chats] == ["", ""]


@run
async def test_closing_keeps_an_edit_beside_the_draft(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"))
        await it.pilot.press(*"later", "alt+e", *" again", "alt+w")
        await it.until(lambda: it.main.prompt.text == "")
        await it.pilot.press("alt+z")
        await it.until(lambda: it.main.prompt.text == "hello again")
        await it.pilot.press("escape")
        assert it.main.prompt.text == "later"
        await it.pilot.press("alt+w", "alt+z")
        await it.until(lambda: it.main.prompt.text == "later")


@run
async def test_a_message_to_all_panes_replaces_no_edited_message_of_another_chat(
    bench: Callable[..., Any],
) -> None:
    async with bench((200, 50)) as it:
        await it.answered(await it.say("hello"))
        await it.pilot.press("alt+e", *" again", "ctrl+n", "alt+a", *"to all", "enter")
        await it.until(lambda: len(it.replies) == 3)
        first = next(iter(it.app.chats))
        assert [each.text for each in first.chat.messages if each.role == "user"] == ["hello", "to all"]
        assert first.edited == "hello again"


@run
async def test_a_system_prompt_that_is_typed_is_saved_like_a_draft(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        it.app.chats.active.instruct("Be brief.")
        stored = lambda: it.app.store.open_chats()[0].typed_system  # noqa: E731
        await it.pilot.press("alt+s", *" No")
        await it.until(lambda: stored() == "Be brief. No")
        await it.pilot.press("x", "escape")
        await it.until(lambda: it.app.screen is it.main)
        assert stored() == "Be brief. Nox", "the notice says that it is kept"
        await it.pilot.press("alt+s", "ctrl+z", "escape")
        await it.until(lambda: stored() is None)
        assert it.app.store.open_chats()[0].system == "Be brief."


@run
async def test_a_system_prompt_that_is_left_returns_with_its_chat(bench: Callable[..., Any]) -> None:
    async with bench((80, 24)) as it:
        it.app.chats.active.instruct("Be brief.")
        await it.pilot.press("alt+s", "x", "escape", "alt+w")
        await it.until(lambda: not it.app.chats.active.chat.system)
        await it.pilot.press("alt+z")
        await it.until(lambda: it.app.chats.active.chat.system)
        await it.pilot.press("alt+s")
        await it.until(lambda: "System prompt (typed, not used yet" in it.screen_text())
        await it.pilot.press("!", "ctrl+q")
        await it.until(lambda: not it.app.is_running)
    async with bench((80, 24)) as it:
        await it.pilot.press("alt+s")
        await it.until(lambda: "Be brief.x!" in it.screen_text())
        assert it.app.chats.active.chat.system == "Be brief."
        await it.pilot.press("ctrl+s")
        await it.until(lambda: it.app.chats.active.chat.system == "Be brief.x!")
        await it.until(lambda: it.app.store.open_chats()[0].typed_system is None)


@run
async def test_the_notice_of_a_system_prompt_that_is_left_goes_once_it_is_shown_again(
    bench: Callable[..., Any],
) -> None:
    async with bench((80, 24), shows_notices=True) as it:
        await it.pilot.press("alt+s", *"No", "escape")
        await it.until(lambda: "What you typed" in it.screen_text())
        await it.pilot.press("alt+s", "ctrl+s")
        await it.until(lambda: it.app.chats.active.chat.system == "No")
        assert not [*it.app._notifications]


@run
async def test_the_dialog_says_that_a_model_without_a_template_reads_no_system_prompt(
    bench: Callable[..., Any],
) -> None:
    async with bench((80, 24), backend=FakeBackend([snapshot()], has_template=False)) as it:
        await it.pilot.press("alt+s")
        await it.until(
            lambda: "System prompt (no effect: this model has no chat template)" in it.screen_text()
        )
        await it.pilot.press(*"Rhyme", "ctrl+s")
        assert (await it.say("hello")).prompt == "hello"


@run
async def test_a_draft_does_not_remove_a_system_prompt_typed_on_another_screen(
    bench: Callable[..., Any],
) -> None:
    async with bench() as it:
        chat = it.app.chats.active.chat
        it.app.store.keep_typed_system(chat.id, "theirs")
        await it.pilot.press("h")
        await it.until(lambda: it.app.store.chat(chat.id).draft == "h")
        assert it.app.store.chat(chat.id).typed_system == "theirs"


@run
async def test_giving_up_a_system_prompt_leaves_one_typed_on_another_screen(
    bench: Callable[..., Any],
) -> None:
    async with bench() as it:
        chat = it.app.chats.active.chat.id
        await it.pilot.press("alt+s", *"mine", "escape")
        await it.until(lambda: it.app.store.chat(chat).typed_system == "mine")
        it.app.store.keep_typed_system(chat, "theirs")
        await it.pilot.press("alt+s", "ctrl+s")
        await it.until(lambda: it.app.chats.active.chat.system == "mine")
        assert it.app.store.chat(chat).typed_system == "theirs"
