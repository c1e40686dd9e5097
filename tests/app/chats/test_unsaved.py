"""Chats that cannot be saved: the screen says so at once, and as long as it is so."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.app.conftest import run
from tests.cases import SIZES
from tests.chats.test_trouble import connection

WORDS = "chats are not saved"


@run
@pytest.mark.parametrize("size", SIZES)
async def test_a_disk_that_fills_up_during_a_reply(bench: Callable[..., Any], size: tuple[int, int]) -> None:
    async with bench(size) as it:
        reply = await it.say("hello")
        assert WORDS not in it.screen_text()
        disk = connection(it.app.store)
        (pages,) = disk.execute("PRAGMA page_count").fetchone()
        disk.execute(f"PRAGMA max_page_count = {pages}")
        await it.answered(reply, "x" * 100_000)
        await it.until(lambda: any("database or disk is full" in each for each in it.notices()))
        await it.until(lambda: WORDS in it.screen_text())
        await it.pilot.press("f1")
        await it.pilot.press("escape", "ctrl+n")
        assert WORDS in it.screen_text()


@run
async def test_a_folder_that_cannot_be_written(bench: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / ".local").touch()
    async with bench() as it:
        await it.until(lambda: WORDS in it.screen_text())
