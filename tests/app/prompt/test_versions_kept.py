"""Each version of a reply is there after a restart, in the same order."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.api.errors import BadParams
from minichat.shell.paths import locate
from tests.app.conftest import run


async def _three(it: Any) -> None:
    await it.answered(await it.say("hello"), "one")
    for text in ("two", "three"):
        await it.answered(await _regenerate(it), text)


async def _regenerate(it: Any) -> Any:
    asked = len(it.replies)
    await it.pilot.press("alt+r")
    await it.until(lambda: len(it.replies) > asked)
    return it.replies[-1]


async def _turns(it: Any, count: int = 3) -> list[str]:
    """The version that is shown, and what as many switches show."""
    seen = [it.texts()[-1][1]]
    for _ in range(count):
        await it.command("reply.earlier")
        seen.append(it.texts()[-1][1])
    return seen


@run
@pytest.mark.parametrize("switches", [0, 1, 2])
async def test_three_versions_take_turns_as_before_the_restart(
    bench: Callable[..., Any], switches: int
) -> None:
    async with bench() as it:
        await _three(it)
        before = await _turns(it, switches)
    turns = ["three", "two", "one"] * 2
    async with bench() as it:
        await it.until(lambda: it.texts()[-1][1] == before[-1])
        assert await _turns(it) == turns[switches : switches + 4]
        await it.until(lambda: len(it.notices()) == 3)
        number = {"one": 1, "two": 2, "three": 3}
        assert it.notices()[0] == f"Version {number[turns[switches + 1]]} of 3"


@run
async def test_the_stopped_version_is_the_first_one_after_a_restart(bench: Callable[..., Any]) -> None:
    async with bench() as it:
        await _three(it)
        (await _regenerate(it)).say("a stub")
        await it.until(lambda: "a stub" in it.screen_text())
        await it.pilot.press("escape")
        await it.until(lambda: it.texts()[-1][1] == "three")
    async with bench() as it:
        assert await _turns(it, 4) == ["three", "a stub", "two", "one", "three"]


@run
async def test_a_kill_during_a_regeneration_leaves_all_complete_versions(
    bench: Callable[..., Any], tmp_path: Path
) -> None:
    async with bench() as it:
        await _three(it)
        await _regenerate(it)
        place, copy = locate({"HOME": str(tmp_path)}).chats, tmp_path / "copy"
        with sqlite3.connect(place) as there, sqlite3.connect(copy) as here:
            there.backup(here)
        await it.answered(it.replies[-1], "four")
    for each in place.parent.glob(f"{place.name}*"):
        each.unlink()
    copy.rename(place)  # what a kill would leave
    async with bench() as it:
        await it.until(lambda: it.texts()[-1][1:] == ("three", "done"))
        assert await _turns(it) == ["three", "two", "one", "three"]


@run
async def test_a_version_that_was_refused_offers_no_retry_when_it_is_shown_again(
    bench: Callable[..., Any],
) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "one")
        it.app.chats.active.edit()
        it.backend.refusal = BadParams("top_p", "must be above 0")
        it.main.prompt.put("goodbye")
        await it.pilot.press("enter")
        await it.until(lambda: "failed: top-p" in it.screen_text())
        assert "to retry" not in it.screen_text()
        for text in ("one", ""):
            await it.command("reply.earlier")
            assert it.texts()[-1][1] == text
        assert it.app.chats.active.chat.messages[-1].refused
        await it.until(lambda: "failed: top-p" in it.screen_text())
        assert "to retry" not in it.screen_text()


@run
async def test_an_edited_message_that_a_switch_took_away_was_not_deleted_elsewhere(
    bench: Callable[..., Any],
) -> None:
    async with bench() as it:
        await it.answered(await it.say("hello"), "one")
        await it.pilot.press("alt+e")
        await it.answered(await it.say("good day"), "two")
        await it.pilot.press("alt+e", "!")
        await it.command("reply.earlier")
        await it.pilot.press("enter")
        said = "The edited message is no longer in the chat; send again to add the text as a new one"
        await it.until(lambda: it.notices()[-1:] == [said])
        assert (it.main.prompt.text, len(it.replies)) == ("good day!", 2)
        await it.pilot.press("enter")
        await it.until(lambda: len(it.replies) == 3)
        assert [text for _, text, _ in it.texts()] == ["hello", "one", "good day!", ""]
        await it.answered(it.replies[-1])
