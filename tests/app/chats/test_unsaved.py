"""Chats that cannot be saved: the screen says so at once, and as long as it is so."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minichat.chats import returning
from minichat.commands.screen import say_lost
from minichat.features import saving
from minichat.features.leaving import RESTART
from tests.app.conftest import Clock, run
from tests.cases import SIZES
from tests.chats.test_trouble import connection

WORDS = "chats are not saved"


async def fill(it: Any) -> None:
    """Fill up the disk during a reply."""
    reply = await it.say("hello")
    assert WORDS not in it.screen_text()
    disk = connection(it.app.store)
    (pages,) = disk.execute("PRAGMA page_count").fetchone()
    disk.execute(f"PRAGMA max_page_count = {pages}")
    await it.answered(reply, "x" * 100_000)
    await it.until(lambda: any("database or disk is full" in each for each in it.notices()))
    await it.until(lambda: WORDS in it.screen_text())


async def fill_and_clear(it: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill up the disk, then make room again."""
    with monkeypatch.context() as patch:
        patch.setattr(returning, "_free", lambda folder: 0)
        await fill(it)


@run
@pytest.mark.parametrize("size", SIZES)
async def test_a_disk_that_fills_up_during_a_reply(bench: Callable[..., Any], size: tuple[int, int]) -> None:
    async with bench(size) as it:
        await fill(it)
        await it.pilot.press("f1")
        await it.pilot.press("escape", "ctrl+n")
        assert WORDS in it.screen_text()


@run
async def test_a_folder_that_cannot_be_written(bench: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / ".local").touch()
    async with bench() as it:
        await it.until(lambda: WORDS in it.screen_text())


@run
@pytest.mark.parametrize(
    ("key", "name", "does", "code"),
    [("ctrl+q", "^Q", "quit", 0), ("ctrl+c", "^C", "quit", 0), ("f5", "F5", "restart", RESTART)],
)
async def test_leaving_asks_before_messages_are_lost(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, key: str, name: str, does: str, code: int
) -> None:
    monkeypatch.setattr(returning, "_free", lambda folder: 0)
    clock = Clock()
    async with bench(clock=clock) as it:
        await fill(it)
        said = f"New messages are not saved; press {name} again to {does} and lose them"
        presses = [key] * (2 if key == "ctrl+c" else 1)  # a second one means it
        await it.pilot.press(*presses)
        await it.until(lambda: said in it.notices())
        clock.now += 5.0
        await it.pilot.press(*presses)
        await it.pilot.pause()
        assert it.app.return_code is None
        clock.now += 3.0
        await it.pilot.press(key)
        await it.until(lambda: it.app.return_code == code)


@run
async def test_each_way_of_leaving_asks_for_itself(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(returning, "_free", lambda folder: 0)
    async with bench(clock=Clock()) as it:
        await fill(it)
        for key, way in (("f5", "F5 again to restart"), ("ctrl+q", "^Q again to quit")):
            await it.pilot.press(key)
            await it.until(lambda: f"New messages are not saved; press {way} and lose them" in it.notices())  # noqa: B023
        assert it.app.return_code is None
        await it.pilot.press("ctrl+q")
        await it.until(lambda: it.app.return_code == 0)


@run
async def test_leaving_saves_the_chats_if_there_is_room_again(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench() as it:
        await fill_and_clear(it, monkeypatch)
        await it.pilot.press("ctrl+q")
        await it.until(lambda: it.app.return_code == 0)
        assert not it.app.store.unsaved
    async with bench() as it:
        assert it.texts()[-1] == ("assistant", "x" * 100_000, "done")


@run
async def test_chats_are_saved_soon_after_there_is_room_again(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "_EVERY", 0.05)
    async with bench() as it:
        await fill_and_clear(it, monkeypatch)
        await it.until(lambda: WORDS not in it.screen_text())
        assert it.notices()[-1].startswith("The chats are saved in ") and not it.app.store.unsaved


@run
async def test_the_end_saves_before_it_closes_the_screen(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal, closing it may fail."""
    async with bench() as it:
        await fill_and_clear(it, monkeypatch)
        await it.app.chats.shut_down()
        assert not it.app.store.unsaved


@run
async def test_leaving_asks_nothing_if_nothing_was_said(bench: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / ".local").touch()
    async with bench() as it:
        await it.until(lambda: WORDS in it.screen_text())
        await it.pilot.press("ctrl+q")
        await it.until(lambda: it.app.return_code == 0)


@run
async def test_messages_that_are_lost_only_while_leaving_are_named_afterwards(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(returning, "_free", lambda folder: 0)
    async with bench() as it:
        reply = await it.say("hello")
        disk = connection(it.app.store)
        (pages,) = disk.execute("PRAGMA page_count").fetchone()
        disk.execute(f"PRAGMA max_page_count = {pages}")
        reply.say("x" * 100_000)
        await it.pilot.press("ctrl+q", "ctrl+q")
        await it.until(lambda: it.app.return_code == 0)
        say_lost(it.app.store, it.app.paths.chats)
    file = it.app.paths.chats
    assert capsys.readouterr().err == f'minichat: cannot write {file}. Not saved: 1 message of "hello"\n'
