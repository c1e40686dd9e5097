"""Keys that arrive faster than they are handled: each acts where the keys before it moved the focus."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from textual.events import Key, Paste
from textual.widgets import Input

from minichat.app import MinichatApp
from minichat.shell.key_order import KeyOrder
from tests.app.conftest import Bench, run
from tests.cases import one_of

NAMED = ("enter", "escape", "tab")


def typed(it: Bench, *keys: str) -> None:
    """Post all keys at once, as a terminal delivers input that was buffered; words letter by letter."""
    post(it.app, *keys)


def post(app: MinichatApp, *keys: str) -> None:
    for key in keys:
        for each in [key] if "+" in key or key in NAMED else key:
            letter = each if len(each) == 1 else None
            written = "\t" if each == "tab" else letter
            app.post_message(Key(each, written))


@run
async def test_text_after_a_new_chat_goes_into_it(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        typed(it, "for", "ctrl+n", "two", "ctrl+n", "three")
        await it.until(lambda: it.main.prompt.text == "three")
        assert [each.chat.draft for each in it.app.chats][:2] == ["for", "two"]


@run
async def test_text_after_a_message_is_the_next_one(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        typed(it, "one", "enter", "ctrl+n", "two", "enter", "more")
        await it.until(lambda: it.main.prompt.text == "more" and len(it.replies) == 2)
        assert [each.prompt[-1]["content"] for each in it.replies] == ["one", "two"]


@pytest.mark.parametrize("opens", one_of(2, ["ctrl+p", "ctrl+o", "alt+o", "alt+t"]))
@run
async def test_text_after_opening_a_dialog_goes_into_it(bench: Callable[..., Any], opens: str) -> None:
    async with bench() as it:
        typed(it, "left", opens, "right")
        await it.until(lambda: isinstance(it.app.focused, Input) and "right" in it.app.focused.value)
        assert it.main.prompt.text == "left"
        typed(it, "escape", "!")
        await it.until(lambda: it.main.prompt.text == "left!")


@run
async def test_text_after_a_command_of_the_palette_goes_into_its_dialog(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        for round in range(1, 4):
            typed(it, "ctrl+p", "import", "enter", "/none.json", "enter")
            await it.until(lambda round=round: len(it.notices()) == round)
            assert it.notices()[-1].startswith("Cannot read /none.json")
            await it.until(lambda: isinstance(it.app.focused, Input))
            typed(it, "escape", "x")
            await it.until(lambda round=round: it.main.prompt.text == "x" * round)


@run
async def test_pasted_text_waits_in_line_too(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        typed(it, "a", "ctrl+n")
        it.app.post_message(Paste("b\x1b[0m\r\nc"))
        typed(it, "d")
        await it.until(lambda: it.main.prompt.text == "b␛[0m\ncd")
        assert [each.chat.draft for each in it.app.chats][:1] == ["a"]


@run
async def test_a_widget_that_disappears_does_not_block_the_queue(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench() as it:
        monkeypatch.setattr(KeyOrder, "PART", 0.005)
        monkeypatch.setattr(KeyOrder, "settle", lambda *_: None)  # the confirmation is lost
        typed(it, "escape", "still", "escape", "here")
        await it.until(lambda: it.main.prompt.text == "stillhere")


@run
async def test_text_typed_before_the_first_frame_is_kept(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MinichatApp, "on_load", lambda app: post(app, "early"), raising=False)
    async with bench() as it:
        await it.until(lambda: it.main.prompt.text == "early")


@run
async def test_enter_before_the_first_frame_sends_and_ctrl_j_later_adds_a_line(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_load(app: MinichatApp) -> None:
        post(app, "early", "ctrl+j")  # what a terminal in line mode sends for Enter

    monkeypatch.setattr(MinichatApp, "on_load", on_load, raising=False)
    async with bench() as it:
        await it.until(lambda: it.replies)
        assert it.replies[0].prompt[-1]["content"] == "early"
        typed(it, "more", "ctrl+j", "lines")
        await it.until(lambda: it.main.prompt.text == "more\nlines")


@run
async def test_several_lines_before_the_first_frame_are_one_message(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_load(app: MinichatApp) -> None:
        post(app, "ctrl+n", "def f():", "ctrl+j", "tab", "return 1", "ctrl+j", "ctrl+j", "f()", "ctrl+j")

    monkeypatch.setattr(MinichatApp, "on_load", on_load, raising=False)
    async with bench() as it:
        await it.until(lambda: it.main.prompt.text == "def f():\n\treturn 1\n\nf()")
        assert not it.replies and it.app.chats.index == 1


@run
async def test_what_a_part_has_no_use_for_is_typed_though_the_prompt_has_the_focus_by_now(
    bench: Callable[..., Any],
) -> None:
    async with bench() as it:
        await it.pilot.press("f3")
        knobs = it.app.focused
        typed(it, "escape")
        await it.until(lambda: it.app.focused is it.main.prompt)
        for event in (Key("T", "T"), Paste("ell"), Key("!", "!")):
            knobs._forward_event(event)
        await it.until(lambda: it.main.prompt.text == "Tell!")
        it.app.post_message(Paste("once"))
        await it.until(lambda: it.main.prompt.text.startswith("Tell!once"))
        await it.pilot.pause()
        assert it.main.prompt.text == "Tell!once"


@run
async def test_a_stall_of_the_loop_does_not_release_keys(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench() as it:
        monkeypatch.setattr(KeyOrder, "settle", lambda *_: None)
        typed(it, "escape", "x")
        await it.until(lambda: it.app._key_order._waiting)
        time.sleep(1.5)
        await it.pilot.pause(0.2)
        assert it.main.prompt.text == "", "the callbacks have had no time"
        await it.until(lambda: it.main.prompt.text == "x")


@run
async def test_a_late_callback_does_not_release_the_keys_after_another(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench() as it:
        late = list[int]()
        monkeypatch.setattr(KeyOrder, "settle", lambda _, turn: late.append(turn))
        typed(it, "escape", "x", "escape", "y")
        await it.until(lambda: it.main.prompt.text == "x" and len(late) == 2)
        it.app._key_order._release_soon(late[0])
        await it.pilot.pause(0.2)
        assert it.main.prompt.text == "x"
        it.app._key_order._release_soon(late[1])
        await it.until(lambda: it.main.prompt.text == "xy")
