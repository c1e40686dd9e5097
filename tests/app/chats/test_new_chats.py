"""New chats: their sampling parameters, from the command line or the settings, and their letters."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import BadInput
from engine.api.params import SamplingParams
from minichat.chats.model import Message
from minichat.chats.store import Store
from minichat.clients.fake import FakeBackend
from minichat.commands.screen import sampling_options
from minichat.settings import Settings
from minichat.settings.schema import ChatSettings
from minichat.shell.first import First
from minichat.shell.paths import locate
from tests.app.chats.test_beside_another_screen import comes_back
from tests.app.conftest import Clock, run, snapshot

COLD = SamplingParams(temperature=0.0, seed=5)


def params_and_systems(it: Any) -> list[tuple[float, str]]:
    return [(each.chat.params.temperature, each.chat.system) for each in it.app.chats]


@run
async def test_a_new_chat_does_not_inherit_from_the_previous_one(bench: Callable[..., Any]) -> None:
    async with bench(system="be brief") as it:
        await it.answered(await it.say("before"))
        it.app.chats.active.tune(COLD)
        it.app.chats.active.instruct("rhyme")
        await it.pilot.press("ctrl+n")
        await it.until(lambda: len(it.app.chats) == 2)
        assert params_and_systems(it) == [(0.0, "rhyme"), (0.7, "be brief")]
        await it.pilot.press("alt+w", "alt+w")  # closing the last chat opens a new one
        await it.until(lambda: params_and_systems(it) == [(0.7, "be brief")])


@run
async def test_changed_settings_apply_to_later_chats(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await it.answered(await it.say("before"))
    async with bench(params=COLD, system="rhyme") as it:
        assert params_and_systems(it) == [(0.7, "")]
        await it.pilot.press("ctrl+n")
        await it.until(lambda: params_and_systems(it) == [(0.7, ""), (0.0, "rhyme")])


@run
@pytest.mark.parametrize("text", ["", "hello"])
async def test_command_line_options_open_a_new_chat(bench: Callable[..., Any], text: str) -> None:
    async with bench() as it:
        await it.answered(await it.say("before"))
    asked = {"params": COLD, "system": "rhyme", "named": True, "first": First(text, send=bool(text))}
    async with bench(**asked) as it:
        await it.until(lambda: len(it.replies) == bool(text))
        assert params_and_systems(it) == [(0.7, ""), (0.0, "rhyme")]
        assert it.app.chats.index == 1
        if text:
            assert it.replies[0].prompt[0] == {"role": "system", "content": "rhyme"}
            assert it.replies[0].params.seed == 5
            await it.answered(it.replies[0])
        else:
            await it.answered(await it.say("so drawn"))
    async with bench(**asked | {"first": First()}) as it:  # the program is started again
        assert params_and_systems(it) == [(0.7, ""), (0.0, "rhyme")]


@run
async def test_an_empty_chat_takes_the_command_line_options(bench: Callable[..., Any]) -> None:
    async with bench():
        pass
    async with bench(params=COLD, system="rhyme", named=True) as it:
        assert params_and_systems(it) == [(0.0, "rhyme")]
    async with bench() as it:  # without options the chat is unchanged
        assert params_and_systems(it) == [(0.0, "rhyme")]


def test_options_that_are_not_given_come_from_the_settings() -> None:
    settings = Settings(
        chat=ChatSettings(system="be brief"), sampling=SamplingParams(temperature=0.5, top_k=3)
    )

    def given(**options: Any) -> tuple[float, int, str, bool]:
        asked = sampling_options(
            argparse.Namespace(**{"system": None, "temperature": None, "seed": None, **options}), settings
        )
        return asked.params.temperature, asked.params.top_k, asked.system, asked.named

    assert given() == (0.5, 3, "be brief", False)
    assert given(temperature=0.0) == (0.0, 3, "be brief", True)
    with pytest.raises(BadInput, match="--seed has no effect with --temperature 0"):
        given(temperature=0.0, seed=5)
    assert given(system="rhyme") == (0.5, 3, "rhyme", True)
    assert given(system="be brief") == (0.5, 3, "be brief", False)
    assert given(system="") == (0.5, 3, "", True)


@run
async def test_no_two_tabs_have_the_same_letter(bench: Callable[..., Any], tmp_path: Path) -> None:
    """A tab stays if another screen deletes its chat."""
    async with bench() as it:
        await it.answered(await it.say("one"))
        await it.pilot.press("ctrl+n")
        await it.answered(await it.say("two"))
        deleted = it.app.chats.active
        Store(locate({"HOME": str(tmp_path)}).chats).delete_chat(deleted.chat.id)
        await it.pilot.press("ctrl+n")
        await it.answered(await it.say("three"))
        await it.pilot.press("alt+k")
        assert [each.chat.letter for each in it.app.chats] == ["a", "b", "c", "d"]


@run
async def test_a_chat_of_another_screen_takes_the_letter_of_a_deleted_one(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    async with bench(clock=Clock()) as it:
        await it.answered(await it.say("one"))
        await it.pilot.press("ctrl+n")
        await it.answered(await it.say("two"))
        deleted, other = it.app.chats.active, Store(locate({"HOME": str(tmp_path)}).chats)
        other.delete_chat(deleted.chat.id)
        new, newer = other.create_chat(), other.create_chat()
        for each in (new, newer):
            other.add_turn(each.id, 0, [Message(0, "user", "three")])
        assert new.letter == deleted.chat.letter
        comes_back(it)
        await it.pilot.press("x")
        await it.until(lambda: len(it.app.chats) == 4)
        assert [each.chat.letter for each in it.app.chats] == ["a", "d", "b", "c"]
        await it.until(lambda: it.main.prompt.border_title.startswith("D "))
        await it.until(lambda: "assistant D" in it.screen_text() and "assistant B" not in it.screen_text())


@run
@pytest.mark.parametrize("template", [True, False])
async def test_the_prompt_names_a_system_prompt_that_the_model_reads(
    bench: Callable[..., Any], template: bool
) -> None:
    async with bench(backend=FakeBackend([snapshot()], has_template=template)) as it:
        await it.until(lambda: it.app.lifecycle.alive)
        it.app.chats.active.instruct("Be brief.")
        named = str(it.main.prompt.border_title).endswith("  system prompt")
        assert named is template
